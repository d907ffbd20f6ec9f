"""The processes of a run: which this one is, its device, and what all of them do together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from corpus.workspace import DataError
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ontrain.distributed import World, find_processes

__all__ = ["Team"]


@dataclass(frozen=True)
class Team:
    """One process of `size`, by default the only one.

    Attributes:
        rank, size: its number, from 0, and how many there are.
        device: of its computation.
        world: all together; None for a single process.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")
    world: World | None = None

    @classmethod
    def join(cls, no_cuda: bool) -> Team:
        """Meet the processes that the launcher started (torchrun, mpirun, srun); they part when the program ends.

        Args:
            no_cuda: compute on the CPU, even where there are GPUs; else each process has the one of its local rank.

        Raises:
            DataError: there are more processes on this machine than GPUs.
            OptionError, ProcessError: the launcher's variables are wrong, or the others were not met.
        """
        me, device = find_processes(), torch.device("cpu")
        if torch.cuda.is_available() and not no_cuda:
            count = torch.cuda.device_count()
            if me.local_rank >= count:
                raise DataError(
                    f"process {me.local_rank} of this machine has no GPU: there are {count}; start as many processes"
                )
            device = torch.device("cuda", me.local_rank)
            torch.cuda.set_device(device)
        world = World(me.rank, me.world_size, device) if me.world_size > 1 else None
        return cls(me.rank, me.world_size, device, world)

    @property
    def first(self) -> bool:
        """Whether this is the process that speaks, writes files and evaluates."""
        return self.rank == 0

    def parallel(self, module: nn.Module) -> nn.Module:
        """Have gradients averaged over all processes, after the backward pass of each update's last micro-batch."""
        if self.world is None:
            return module
        return DistributedDataParallel(module, device_ids=[self.device] if self.device.type == "cuda" else None)

    def sum(self, value: float) -> float:
        """Add up a number over all processes."""
        if self.world is None:
            return value
        return float(self.world.sum_(torch.tensor(value, dtype=torch.float64, device=self.device)))

    def gather(self, tensor: Tensor) -> Tensor:
        """Stack everybody's uint8 tensor of one length, [size, length], on the CPU."""
        if self.world is None:
            return tensor[None]
        flat = torch.zeros(self.size * tensor.numel(), dtype=torch.uint8, device=self.device)
        self.world.own(flat).copy_(tensor)
        return self.world.all_gather_(flat).view(self.size, -1).cpu()

    def first_does(self, doing: str, action: Callable[[], Any]) -> None:
        """Let the first process do something while the others wait.

        Raises:
            OntrainError: what `action` raised; in the others a ProcessError that says it.
        """
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
        rows = sum(len(one) for one in batches)
        own = [(one, len(one) / rows) for one in batches[self.rank :: self.size]]
        return own or [(batches[0][:1], 0.0)]
