"""The executable: straight-line calls on tensors that exist, made once for a signature."""

from __future__ import annotations

import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ontrain.internals import without_gradients
from ontrain.providers.base import Array, NodeTime, OperatorTime
from ontrain.providers.torch.binder import Binder, own_generators
from ontrain.providers.torch.blocks import Block, Blocks
from ontrain.providers.torch.calls import node_times
from ontrain.providers.torch.code import Held, codes
from ontrain.providers.torch.instructions import Instruction
from ontrain.providers.torch.intake import Intake, lent_storages
from ontrain.providers.torch.lowering.optimizer import is_update
from ontrain.providers.torch.products import Product, products_of
from ontrain.providers.torch.program import Program
from ontrain.providers.torch.replay import PlanPart, Recording, told
from ontrain.providers.torch.row_at_once import RowAtOnce
from ontrain.providers.torch.stock_kernel import StockKernel

__all__ = ["TorchExecutable", "mix"]


class _Bound:
    """A plan's calls on the tensors of one block."""

    def __init__(self, plan: TorchExecutable, block: Block) -> None:
        self.generators = own_generators(plan.generators)
        binder = Binder(block.memory, generators=self.generators)
        drawn = [*self.generators.values()]
        self.parts = list[PlanPart]()
        for code in plan.codes:
            before = self.parts[-1] if self.parts and code.taken else None
            run = code.bind(binder.resolve)
            part = plan.recording.part(run, code.program, before=before, generators=drawn, pool=block.pool)
            self.parts.append(part)
        self.intake, self.outputs = Intake(plan.inputs, binder), binder.tensors(plan.outputs)
        self.timed: Callable[[list[Any]], object] | None = None
        self.marks: list[int] = []

    def enter(self, feeds: Mapping[str, Array], rng: tuple[int, int]) -> Held:
        """Take the feeds, return those that are lent, and let the random numbers of a run begin."""
        lent = self.intake.take(feeds)
        for index, generator in enumerate(self.generators.values()) if self.generators else ():
            generator.manual_seed(mix(rng[0], rng[1], index))
        return lent


class TorchExecutable:
    """Runs a program: copies the feeds in, makes the calls, hands out copies of the outputs.

    Nothing here changes from run to run. Each run takes a block of working memory for as long as it lasts, so that
    threads may run one plan, or several, at the same time; only what updates the state has to be alone.

    Attributes:
        joined: whether a call runs several nodes.
    """

    def __init__(self, program: Program, blocks: Blocks, recording: Recording) -> None:
        self._program, self._nbytes, self._blocks = program.forward, program.nbytes, blocks
        self._planned_bytes, self.recording = program.planned_bytes, recording
        self.inputs, self.outputs, self.generators = program.inputs, program.outputs, program.generators
        self.joined = program.joined
        # Everything after the last call that is no optimizer update: the part that a guard can hold back.
        updates_at = len(self._program)
        while updates_at and _is_update(self._program[updates_at - 1]):
            updates_at -= 1
        self._updates = updates_at < len(self._program)
        self._lent = [lent_storages(program.inputs)]
        self.codes = codes([self._program[:updates_at], self._program[updates_at:]], self._lent)
        self._latest: weakref.ref[_Bound] | None = None

    @property
    def at_once(self) -> RowAtOnce | None:
        """The way past the planned memory, where the whole plan is one call of onnxruntime; see `AtOnce`."""
        if len(self._program) != 1 or not isinstance(self._program[0].fn, StockKernel) or self.generators:
            return None
        return RowAtOnce.of(self._program[0].fn, self._program[0].args, self.inputs, self.outputs)

    @property
    def planned_bytes(self) -> int:
        """Bytes of a block that the plan needs, of results that kernels return at one time at most, and of packs."""
        return self._planned_bytes

    @property
    def launched(self) -> str:
        """How runs are made, in words: as CUDA graphs, or plainly and why."""
        bound = self._latest() if self._latest is not None else None
        return told(bound.parts) if bound is not None else "not yet"

    @property
    def products(self) -> Counter[Product]:
        """The matrix products of one run."""
        return products_of(self._program)

    def run(
        self, feeds: Mapping[str, Array], *, rng: tuple[int, int] = (0, 0), guard: str | None = None
    ) -> dict[str, torch.Tensor]:
        """Run once; see `ontrain.providers.Executable.run`. On CUDA a guard waits for the device."""
        block = self._blocks.take(self._nbytes)
        try:
            with without_gradients():
                bound = self._bound(block)
                step, update = bound.parts
                held = step(bound.enter(feeds, rng))
                if self._updates and (guard is None or bool(bound.outputs[guard])):
                    update(held)
                return {name: tensor.clone() for name, tensor in bound.outputs.items()}
        finally:
            self._blocks.give(block)

    def profile(self, feeds: Mapping[str, Array], *, rng: tuple[int, int] = (0, 0)) -> list[OperatorTime]:
        """Run once with a clock around every call."""
        spent: dict[str, float] = defaultdict(float)
        calls: dict[str, int] = defaultdict(int)
        start = 0.0

        def tick(number: int) -> None:
            nonlocal start
            if self._blocks.device.type == "cuda":
                torch.cuda.current_stream(self._blocks.device).synchronize()
            node = self._program[number].node
            name = node.op_type if node is not None else "copy"
            spent[name] += (time.perf_counter() - start) * 1e3
            calls[name] += 1
            start = time.perf_counter()

        with without_gradients(), self._blocks.taken(self._nbytes) as block:
            bound = self._bound(block)
            lent = bound.enter(feeds, rng)
            (code,) = codes([self._program], self._lent, timed=True)
            run = code.bind(Binder(block.memory, generators=bound.generators).resolve, tick=tick)
            start = time.perf_counter()
            run(lent)
        return [OperatorTime(name, calls[name], ms) for name, ms in sorted(spent.items(), key=lambda i: -i[1])]

    def trace(
        self, feeds: Mapping[str, Array], *, rng: tuple[int, int] = (0, 0)
    ) -> tuple[dict[str, torch.Tensor], list[NodeTime]]:
        """Run once with a clock around every call; return the outputs and the calls."""
        with without_gradients(), self._blocks.taken(self._nbytes) as block:
            bound = self._bound(block)
            if bound.timed is None:
                bound.timed = self._timed(bound, block)
            lent = bound.enter(feeds, rng)
            bound.marks.clear()
            start = time.perf_counter_ns()
            bound.timed(lent)
            outputs = {name: tensor.clone() for name, tensor in bound.outputs.items()}
            return outputs, node_times(self._program, start, bound.marks)

    def _timed(self, bound: _Bound, block: Block) -> Callable[[list[Any]], object]:
        device, marks = self._blocks.device, bound.marks

        def tick(number: int) -> None:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
            marks.append(time.perf_counter_ns())

        (code,) = codes([self._program], self._lent, timed=True)
        return code.bind(Binder(block.memory, generators=bound.generators).resolve, tick=tick)

    def _bound(self, block: Block) -> _Bound:
        bound = block.bound.get(self)
        if not isinstance(bound, _Bound):
            bound = block.bound[self] = _Bound(self, block)
            self._latest = weakref.ref(bound)
        return bound


def _is_update(instruction: Instruction) -> bool:
    return is_update(instruction.node)


def mix(seed: int, offset: int, stream: int) -> int:
    """A 63-bit seed from three counters (the finaliser of splitmix64), so that neighbours share nothing."""
    mask = (1 << 64) - 1
    z = (seed * 0x9E3779B97F4A7C15 + offset * 0xBF58476D1CE4E5B9 + stream * 0x94D049BB133111EB + 1) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) >> 1
