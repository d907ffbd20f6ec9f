"""A graph in two halves, forward and backward, over one memory plan: what a module in a user's own loop runs on."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

import torch

from ontrain.providers.torch.binder import Binder, own_generators
from ontrain.providers.torch.blocks import Block, Blocks
from ontrain.providers.torch.code import Code, Held, codes
from ontrain.providers.torch.executable import mix
from ontrain.providers.torch.intake import Intake, Lent, lent_storages
from ontrain.providers.torch.program import Program
from ontrain.providers.torch.replay import PlanPart, Recording, told
from ontrain.providers.torch.residents import Gradients, GradientSet, Residents

__all__ = ["Tape", "TorchModuleExecutable"]


class _Bound:
    """A plan's calls on the tensors of one block."""

    def __init__(self, version: int, block: Block, plan: TorchModuleExecutable) -> None:
        self.version, self.generators = version, own_generators(plan.generators)
        binder = Binder(block.memory, generators=self.generators)
        self.pool = block.pool
        self.forward = plan.part(plan.forward_code, binder, self)
        self.inputs, self.adjoints = Intake(plan.inputs, binder), Intake(plan.adjoints, binder)
        self.outputs, self.others = binder.tensors(plan.outputs), binder.tensors(plan.other_gradients)
        self.backward: dict[GradientSet, PlanPart] = {}


class Tape:
    """The activations of one forward; its memory goes back to the pool with the backward or with the tape itself.

    Args:
        maker: whose forward it is.
        block: the memory.
        bound: the maker's calls on it.
        blocks: where the memory goes back to.
    """

    def __init__(self, maker: TorchModuleExecutable, block: Block, bound: _Bound, blocks: Blocks) -> None:
        self.maker, self.block, self.bound = maker, block, bound
        self.held: Held = []
        self.lent: Sequence[Lent] = ()
        self._blocks = blocks
        self.open = True

    def close(self) -> None:
        """Give the memory back; the activations are gone."""
        if self.open:
            self.open = False
            self.held.clear()
            self.lent = ()
            self._blocks.give(self.block)

    def __del__(self) -> None:
        self.close()


class TorchModuleExecutable:
    """Runs the two halves; see `ontrain.providers.ModuleExecutable`."""

    def __init__(
        self, program: Program, residents: Residents, blocks: Blocks, gradients: Gradients, recording: Recording
    ) -> None:
        lent = [lent_storages(program.inputs), lent_storages(program.adjoints)]
        self.forward_code, self.backward_code = codes([program.forward, program.backward], lent)
        names = {buf.storage: name for name, buf in program.inputs.items()}
        later = set(self.forward_code.given)
        self._read_later = [(at, names[s]) for at, s in enumerate(lent[0]) if s in later]
        self.inputs, self.outputs, self.adjoints = program.inputs, program.outputs, program.adjoints
        self.gradients, self.other_gradients = program.gradients, program.other_gradients
        self.generators, self.stochastic = program.generators, bool(program.generators)
        self.planned_bytes, self._nbytes = program.planned_bytes, program.nbytes
        read = {id(buf.storage) for instruction in program.backward for buf in instruction.reads}
        self.reads = [name for name, buf in residents.items() if id(buf.storage) in read]
        self._wrt = tuple(program.gradients)
        self._residents, self._blocks, self._gradients, self._recording = residents, blocks, gradients, recording
        self._latest: weakref.ref[_Bound] | None = None

    def forward(self, feeds: Mapping[str, torch.Tensor], seed: int = 0) -> tuple[dict[str, torch.Tensor], Tape]:
        """Run the forward half."""
        block = self._blocks.take(self._nbytes)
        tape = Tape(self, block, self._bound(block), self._blocks)
        bound = tape.bound
        lent = bound.inputs.take(feeds)
        tape.lent = [Lent(name, lent[at]) for at, name in self._read_later]
        for index, generator in enumerate(bound.generators.values()):
            generator.manual_seed(mix(seed, 0, index))
        tape.held = bound.forward(lent)
        return {name: tensor.clone() for name, tensor in bound.outputs.items()}, tape

    def backward(self, tape: Tape, adjoints: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the backward half on a tape, which is closed by it."""
        for value in tape.lent:
            value.check()
        bound = tape.bound
        lent = bound.adjoints.take(adjoints)
        place = self._gradients.take(self._wrt, self.gradients)
        try:
            run = bound.backward.get(place)
            if run is None:
                binder = Binder(tape.block.memory, place.inside, bound.generators)
                before = bound.forward if self.forward_code.given else None
                run = bound.backward[place] = self.part(self.backward_code, binder, bound, before)
            tape.held += lent
            run(tape.held)
            gradients = place.hand_out()
        finally:
            place.taken = False
        for name, tensor in bound.others.items():
            gradients[name] = tensor.clone()
        tape.close()
        return gradients

    @property
    def launched(self) -> str:
        """How the halves run, in words: as CUDA graphs, or plainly and why."""
        bound = self._latest() if self._latest is not None else None
        return told([bound.forward, *bound.backward.values()]) if bound is not None else "not yet"

    def part(self, code: Code, binder: Binder, bound: _Bound, before: PlanPart | None = None) -> PlanPart:
        """Return one half as calls on a block's tensors."""
        run, recording = code.bind(binder.resolve), self._recording
        drawn = [*bound.generators.values()]
        return recording.part(run, code.program, before=before, generators=drawn, pool=bound.pool)

    def _bound(self, block: Block) -> _Bound:
        bound = block.bound.get(self)
        if not isinstance(bound, _Bound) or bound.version != self._residents.version:
            with torch.inference_mode(False):
                bound = _Bound(self._residents.version, block, self)
            block.bound[self] = bound
            self._latest = weakref.ref(bound)
        return bound
