"""Calls recorded once and played again: the kernels of a plan as one launch, without Python between them.

Addresses do not change from run to run: working memory is one block, inputs and state have their places, and what a
kernel allocates while it is recorded stays its own. So a part of a plan runs plainly at first, which loads kernels and
makes handles, is then recorded, and played from then on. A part that cannot be recorded runs plainly ever after, and
`why_not` says why.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ontrain.locks import Lock
from ontrain.operators import record_of
from ontrain.providers.torch.code import Held
from ontrain.providers.torch.instructions import Body, Instruction

__all__ = ["WARM_UP", "CudaRecorder", "Pool", "Recorder", "Recording", "PlanPart", "drawing_from", "told", "waits"]

_logger = logging.getLogger("ontrain.phases")

WARM_UP = 1
"""Runs that a part makes plainly before it is recorded."""


_recording, _drawing = Lock(), Lock()
"""One thread at a time records, and draws from what is a device's own generator meanwhile."""


class Pool:
    """Memory for what kernels allocate while they are recorded for one block of working memory.

    What a forward leaves there lives until its backward, and runs of other blocks come between. In a pool of all blocks
    they would write over it, wherever a graph that was recorded before had needed that place for a moment. The runs of
    one block come one after the other, so their graphs may share.
    """

    def __init__(self) -> None:
        self.handle: Any = None
        self.graphs = weakref.WeakSet[torch.cuda.CUDAGraph]()


class Recorder(Protocol):
    """What can record calls on a device.

    `CudaRecorder` is the one there is; it needs a GPU.
    """

    def record(
        self, calls: Callable[[], None], generators: Sequence[torch.Generator], pool: Pool
    ) -> Callable[[], None]:
        """Record what `calls` would do, without doing it, and return what does it.

        Args:
            calls: made exactly once, on tensors whose addresses stay.
            generators: those that the calls draw from; what is played draws from where they stand then.
            pool: where the kernels' own memory is taken from; only one run uses it at a time.

        Raises:
            RuntimeError: the calls cannot be recorded. Nothing was done.
        """
        ...


class CudaRecorder:
    """Records CUDA graphs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def record(
        self, calls: Callable[[], None], generators: Sequence[torch.Generator], pool: Pool
    ) -> Callable[[], None]:
        """Record a graph; see `Recorder.record`."""
        # torch records on one stream of the whole process, and leaves a thread on it whose recording does not begin.
        with _recording, torch.cuda.device(self._device), torch.cuda.stream(torch.cuda.current_stream(self._device)):
            sharing = next(iter(pool.graphs), None)  # held meanwhile: a pool is gone with the last of its graphs
            if sharing is None:
                pool.handle = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            for generator in generators:
                graph.register_generator_state(generator)
            try:
                # Other threads, of a loader that pins memory, may go on with what a recording forbids.
                with torch.cuda.graph(graph, pool=pool.handle, capture_error_mode="thread_local"):
                    calls()
            except RuntimeError:
                index = self._device.index
                own = torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]
                for generator in (own, *generators):
                    # One whose recording ends early takes itself to be recorded for good: its numbers go to another.
                    generator.graphsafe_set_state(generator.clone_state())
                raise
            pool.graphs.add(graph)
        return graph.replay


class PlanPart:
    """One part of a plan: run plainly at first, then recorded, then played.

    Args:
        run: makes the part's calls; takes what the part before left in variables, and returns what it leaves.
        recorder: of the device; None runs plainly for good.
        why_not: why there is none.
        before: the part whose results this one takes from variables, if it takes any: it must play, too, because a
            recording knows addresses only.
        generators: that the part draws from.
        pool: of the block of working memory that the calls are bound to.
        warm_up: runs before it is recorded.
    """

    def __init__(
        self, run: Callable[[Held], Held], recorder: Recorder | None, *, why_not: str | None = None,
        before: PlanPart | None = None, generators: Sequence[torch.Generator] = (), pool: Pool | None = None,
        warm_up: int = WARM_UP,
    ) -> None:  # fmt: skip
        assert (recorder is None) == (why_not is not None), "a part is recorded, or there is a reason"
        self.why_not = why_not
        """Why it runs plainly for good; None if it is played, or will be."""
        self._run, self._recorder, self._before = run, recorder, before
        self._generators, self._pool, self._left = generators, pool or Pool(), warm_up
        self._play: Callable[[], None] | None = None
        self._results: Held = []

    @property
    def played(self) -> bool:
        """Whether runs are played by now."""
        return self._play is not None

    def __call__(self, held: Held) -> Held:
        """Run the part once; `held` is emptied."""
        if self._play is None and self.why_not is None:
            if self._left:
                self._left -= 1
                return self._run(held)
            self._record(list(held))
        if self._play is None:
            return self._run(held)
        held.clear()
        self._play()
        return list(self._results)

    def _record(self, held: Held) -> None:
        assert self._recorder is not None
        if self._before is not None and not self._before.played:
            self.why_not = "it takes results of a part that is not played"
            return
        storages: Held = []

        def calls() -> None:
            storages[:] = self._run(held)

        try:
            self._play = self._recorder.record(calls, self._generators, self._pool)
        except RuntimeError as error:
            self.why_not = f"it cannot be recorded: {str(error).strip().partition(chr(10))[0]}"
            _logger.warning("a part of a plan runs plainly, not as a CUDA graph: %s", self.why_not)
            return
        # Kept, so that nothing else that is recorded gets their memory.
        self._results = storages


@dataclass(frozen=True)
class Recording:
    """What the plans of a provider are recorded with, or why they are not.

    Attributes:
        recorder: of the device; None if nothing is recorded.
        why_not: the reason then.
    """

    recorder: Recorder | None
    why_not: str | None = None

    @classmethod
    def on(cls, device: torch.device, *, wanted: bool) -> Recording:
        """Return what there is for a device."""
        if device.type != "cuda":
            return cls(None, f"the device is {device.type}, not cuda")
        return cls(CudaRecorder(device)) if wanted else cls(None, "cuda_graphs is off")

    def part(
        self, run: Callable[[Held], Held], program: Sequence[Instruction], *, before: PlanPart | None = None,
        generators: Sequence[torch.Generator] = (), pool: Pool | None = None,
    ) -> PlanPart:  # fmt: skip
        """Return one part of a plan: `run` makes the calls of `program`. For the others see `PlanPart`."""
        why_not = self.why_not or ("it makes no calls" if not program else waits(program))
        recorder = None if why_not else self.recorder
        return PlanPart(run, recorder, why_not=why_not, before=before, generators=generators, pool=pool)


def told(parts: Sequence[PlanPart]) -> str:
    """Return how the parts of a plan run, in words: played, to be recorded, or plainly and why."""
    reasons = dict.fromkeys(part.why_not for part in parts if part.why_not not in (None, "it makes no calls"))
    if reasons:
        return f"plainly: {'; '.join(map(str, reasons))}"
    recorded = [part for part in parts if part.why_not is None]
    return "as CUDA graphs" if all(part.played for part in recorded) else "plainly at first, then as CUDA graphs"


def waits(program: Sequence[Instruction]) -> str | None:
    """Return why a program cannot be recorded, if it asks the device for numbers: the operator that does."""
    for instruction in program:
        if instruction.node is not None and record_of(instruction.node).asks_device:
            return f"{instruction.node.op_type} asks the device for a number"
        if any(isinstance(argument, Body) for argument in instruction.args):
            return "a branch or loop asks the device for a number"
    return None


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Let a kernel that draws from its device's own generator draw from another one, which goes on from there."""
    own = torch.cuda.default_generators[generator.device.index or 0]
    with _drawing:
        before = own.graphsafe_get_state()
        own.graphsafe_set_state(generator)
        try:
            yield
        finally:
            own.graphsafe_set_state(before)
