"""The processes of one run, and what they do together: over torch.distributed, interruptible, the dead named."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ontrain.distributed.liveness import Liveness
from ontrain.distributed.meeting import address_towards, check_place, meet
from ontrain.distributed.presence import Peer, Responder
from ontrain.errors import OntrainError, ProcessError

__all__ = ["World"]

_BLOCK = 64 << 20
"""Bytes that are sent at once where a copy of them is needed."""

# Names that torch gave up in 2.13.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class World:
    """The processes of a run, seen from one of them. Each method is called by all of them, in the same order.

    Args:
        rank: number of this process, from 0.
        size: how many processes there are.
        device: where the tensors are that will be reduced.
        timeout: seconds that the others are waited for; None for torch's default. Where the process group is there
            already, it has its own.

    Raises:
        OptionError: rank or size differ from what the launcher or the process group says.
        ProcessError: the others were not met.
    """

    def __init__(self, rank: int, size: int, device: torch.device, timeout: float | None = None) -> None:
        self.rank, self.size, self.device = rank, size, device
        wait = timedelta(seconds=timeout) if timeout else timedelta(minutes=30)
        said = check_place(rank, size)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        responder = Responder(rank, size)
        self._liveness: Liveness | None = None
        peers = [] if dist.is_initialized() else meet(said, responder, device, wait)
        # Small messages travel where the backend's tensors are.
        self._messages = device if "nccl" in dist.get_backend() else torch.device("cpu")
        if not peers:
            peers = [Peer(**peer) for peer in self.gather(responder.peer(address_towards(said)).to_json())]
        self._liveness = Liveness(responder, peers, wait.total_seconds())

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Add up a tensor over all processes, in place."""
        self._wait("all-reduce", lambda: dist.all_reduce(tensor, async_op=True))
        return tensor

    def broadcast_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Give all processes the tensor of process 0, in place."""
        self._wait("broadcast", lambda: dist.broadcast(tensor, 0, async_op=True))
        return tensor

    def own(self, flat: torch.Tensor) -> torch.Tensor:
        """Return this process's part of a flat tensor that divides into as many as there are processes."""
        size = flat.numel() // self.size
        return flat[self.rank * size : (self.rank + 1) * size]

    def reduce_scatter_(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the own part of the sum over all processes, in its place in `flat`; the rest of that is undefined."""
        own = self.own(flat)
        if "nccl" in dist.get_backend():
            self._wait("reduce-scatter", lambda: _reduce_scatter(own, flat, async_op=True))
            return own
        # Gloo's own is an all-reduce of a copy, and cannot be interrupted: each sends the others their parts instead.
        parts = flat.view(self.size, -1)
        step = max(1, _BLOCK // (self.size * flat.element_size()))
        for start in range(0, own.numel(), step):
            sent = parts[:, start : start + step].contiguous()
            received = torch.empty_like(sent)
            self._exchange("reduce-scatter", received, sent)
            own[start : start + step] = received.sum(0)
        return own

    def all_gather_(self, flat: torch.Tensor) -> torch.Tensor:
        """Fill `flat` with the own parts of all processes."""
        self._wait("all-gather", lambda: _all_gather(flat, self.own(flat), async_op=True))
        return flat

    def swap(self, tensor: torch.Tensor, partner: int, count: int) -> torch.Tensor:
        """Send a flat tensor to one partner and return the `count` elements that it sends; all pair off."""
        sent, received = [0] * self.size, [0] * self.size
        sent[partner], received[partner] = tensor.numel(), count
        theirs = tensor.new_empty(count)
        self._wait(
            f"exchange with rank {partner}",
            lambda: dist.all_to_all_single(theirs, tensor, received, sent, async_op=True),
        )
        return theirs

    def _exchange(self, doing: str, received: torch.Tensor, sent: torch.Tensor) -> None:
        self._wait(doing, lambda: dist.all_to_all_single(received, sent, async_op=True))

    def rows(self, numbers: Sequence[float]) -> list[list[float]]:
        """Return the numbers that each process gave, as many as each other, in the order of ranks."""
        flat = torch.zeros(self.size * len(numbers), dtype=torch.float64, device=self._messages)
        self.own(flat).copy_(torch.tensor(list(numbers), dtype=torch.float64, device="cpu"))
        rows: list[list[float]] = self.all_gather_(flat).view(self.size, -1).tolist()
        return rows

    def gather(self, value: Any) -> list[Any]:
        """Return what each process gave, in the order of ranks; anything that JSON can hold."""
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = torch.zeros(self.size, dtype=torch.int64, device=self._messages)
        self.own(sizes).fill_(text.numel())
        longest = int(self.all_gather_(sizes).max())
        texts = torch.zeros(self.size * longest, dtype=torch.uint8, device=self._messages)
        self.own(texts)[: text.numel()].copy_(text)
        gathered = self.all_gather_(texts).cpu().view(self.size, longest)
        return [json.loads(bytes(row[:size].tolist())) for row, size in zip(gathered, sizes.tolist(), strict=True)]

    def all_succeed(self, doing: str, action: Callable[[], Any], ranks: Sequence[int] | None = None) -> None:
        """Let some processes, by default all, do something; where one fails, all raise.

        Raises:
            ProcessError: another process failed; names it and what it said.
            OntrainError: what the action raised here.
        """
        failure: OntrainError | None = None
        if ranks is None or self.rank in ranks:
            try:
                action()
            except OntrainError as error:  # the others must hear of it before it goes its way
                failure = error
        said = self.gather(None if failure is None else f"{type(failure).__name__}: {failure}")
        if failure is not None:
            raise failure
        for rank, text in enumerate(said):
            if text is not None:
                raise ProcessError(f"rank {rank} could not {doing}", reason=text.replace("\n", "\n    "))

    def _wait(self, doing: str, start: Callable[[], Any]) -> None:
        """Wait for a collective in small naps, so that an interrupt ends the wait, and what another found out, too."""
        liveness = self._liveness
        if liveness is not None:
            liveness.begin()
        work: Any = None
        try:
            if liveness is not None and liveness.is_over:
                raise liveness.explain(doing)
            work, nap = start(), 2e-5
            while not work.is_completed():
                time.sleep(nap)
                nap = min(2 * nap, 1e-3)
                if liveness is not None and liveness.is_over:
                    raise liveness.explain(doing)
            work.wait()
        except RuntimeError as error:
            if liveness is None:
                raise ProcessError(f"{doing} failed", reason=str(error)) from error
            raise liveness.explain(doing, error) from error
        finally:
            if work is not None and not work.is_completed():
                _abandon(work)


def _abandon(work: Any) -> None:
    """Let nobody wait for a collective that was given up: a process group waits for all of its own before it goes.

    A daemon's frame is never left at exit, so what it refers to stays, and the process can end.
    """

    def hold(work: Any, group: Any) -> None:
        while not work.is_completed():
            time.sleep(1)

    threading.Thread(target=hold, args=(work, dist.group.WORLD), name="ontrain gave up", daemon=True).start()
