"""The processes of a run: which this one is, its device, and what all of them do together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from harness.files import DataError
from ontrain.distributed import Processes, World, find_processes


@dataclass(frozen=True)
class Team:
    """One process of `size`, by default the only one.

    Attributes:
        rank, size: its number, from 0, and how many there are.
        device: of its computation.
        world: all together; None for a single process.
        processes: what the launcher says.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")
    world: World | None = None
    processes: Processes = field(default_factory=Processes)

    @classmethod
    def join(cls, device: str | None = None, *, local_rank: int | None = None) -> Team:
        """Meet the processes that the launcher started (torchrun, mpirun, srun); they part when the program ends.

        Args:
            device: of the computation; by default the GPU of the local rank, the CPU where there is none.
            local_rank: in place of the launcher's.
        """
        me = find_processes()
        if device is None and torch.cuda.is_available():
            number = me.local_rank if local_rank is None else local_rank
            count = torch.cuda.device_count()
            if number >= count:
                raise DataError(
                    f"process {number} of this machine has no GPU: there are {count}; start as many processes"
                )
            device = f"cuda:{number}"
            torch.cuda.set_device(number)
        place = torch.device(device or "cpu")
        world = World(me.rank, me.world_size, place) if me.world_size > 1 else None
        return cls(me.rank, me.world_size, place, world, me)

    @property
    def first(self) -> bool:
        """Whether this is the process that speaks, writes files and evaluates."""
        return self.rank == 0

    def parallel(self, module: nn.Module) -> nn.Module:
        """Have gradients averaged over all processes, after the backward pass of each update's last micro-batch."""
        if self.world is None:
            return module
        return DistributedDataParallel(module, device_ids=[self.device] if self.device.type == "cuda" else None)

    def total(self, numbers: Sequence[float]) -> list[float]:
        """Add up each number over all processes."""
        if self.world is None:
            return list(numbers)
        return self.world.sum_(torch.tensor(numbers, dtype=torch.float64, device=self.device)).tolist()

    def sum(self, value: float) -> float:
        """Add up a number over all processes."""
        return self.total([value])[0]

    def gather(self, tensor: Tensor) -> Tensor:
        """Stack everybody's uint8 tensor of one length, [size, length], on the CPU."""
        if self.world is None:
            return tensor[None]
        flat = torch.zeros(self.size * tensor.numel(), dtype=torch.uint8, device=self.device)
        self.world.own(flat).copy_(tensor)
        return self.world.all_gather_(flat).view(self.size, -1).cpu()

    def first_does(self, doing: str, action: Callable[[], Any]) -> None:
        """Let the first process do something while the others wait; what it raises ends the others, too."""
        if self.world is None:
            action()
        else:
            self.world.all_succeed(doing, action, ranks=[0])

    def shares(self, batches: Sequence[Any]) -> list[tuple[Any, float]]:
        """Return this process's part of an update's micro-batches, each with its weight in the mean over all rows.

        Who gets none takes a row that counts for nothing: the others wait for its gradient.

        Args:
            batches: row numbers of the update's micro-batches in all processes; the last may be shorter or missing.
        """
        rows = sum(len(batch) for batch in batches)
        own = [(batch, len(batch) / rows) for batch in batches[self.rank :: self.size]]
        return own or [(batches[0][:1], 0.0)]


def alone(module: Any, *, last: bool) -> AbstractContextManager[None]:
    """Keep processes from waiting for each other's gradients before an update's last micro-batch."""
    return nullcontext() if last or not isinstance(module, DistributedDataParallel) else module.no_sync()
