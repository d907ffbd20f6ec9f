"""A graph in two halves, forward and backward, over one memory plan: what a module in a user's own loop runs on."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ontrain.providers.torch.binder import Binder, own_generators
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.code import Code, Held, codes
from ontrain.providers.torch.emitter import Instruction
from ontrain.providers.torch.executable import mix
from ontrain.providers.torch.memory import Block, Blocks, GradientSet, Memory
from ontrain.providers.torch.replay import Replay, told

__all__ = ["Tape", "TorchModuleExecutable"]


class _Bound:
    """A plan's calls on the tensors of one block."""

    def __init__(self, version: int, block: Block, plan: TorchModuleExecutable) -> None:
        self.version, self.generators = version, own_generators(plan.generators)
        binder = Binder(block.memory, generators=self.generators)
        self.forward = plan.part(plan.forward_code, binder, self)
        self.inputs, self.outputs = binder.tensors(plan.inputs), binder.tensors(plan.outputs)
        self.adjoints, self.others = binder.tensors(plan.adjoints), binder.tensors(plan.other_gradients)
        self.backward: dict[GradientSet, Replay] = {}


class Tape:
    """The activations of one forward; its memory goes back to the pool with the backward or with the tape itself."""

    def __init__(self, block: Block, bound: _Bound, blocks: Blocks) -> None:
        self.block, self.bound = block, bound
        self.held: Held = []
        self._blocks = blocks
        self.open = True

    def close(self) -> None:
        """Give the memory back; the activations are gone."""
        if self.open:
            self.open = False
            self.held.clear()
            self._blocks.give(self.block)

    def __del__(self) -> None:
        self.close()


class TorchModuleExecutable:
    """Runs the two halves; see `ontrain.providers.ModuleExecutable`."""

    def __init__(
        self, halves: tuple[Sequence[Instruction], Sequence[Instruction]], *, inputs: Mapping[str, Buf],
        outputs: Mapping[str, Buf], adjoints: Mapping[str, Buf], gradients: Mapping[str, Buf],
        other_gradients: Mapping[str, Buf], nbytes: int, outside_nbytes: int, memory: Memory,
        generators: Sequence[torch.Generator], reads: Sequence[str],
    ) -> None:  # fmt: skip
        self.forward_code, self.backward_code = codes(halves)
        self.inputs, self.outputs, self.adjoints = inputs, outputs, adjoints
        self.gradients, self.other_gradients = gradients, other_gradients
        self._wrt = tuple(gradients)
        self.reads, self.stochastic, self.planned_bytes = list(reads), bool(generators), nbytes + outside_nbytes
        self._nbytes, self._memory, self.generators = nbytes, memory, generators
        self._latest: weakref.ref[_Bound] | None = None

    def forward(self, feeds: Mapping[str, torch.Tensor], seed: int = 0) -> tuple[dict[str, torch.Tensor], Tape]:
        """Run the forward half."""
        block = self._memory.blocks.take(self._nbytes)
        tape = Tape(block, self._bound(block), self._memory.blocks)
        bound = tape.bound
        for name, target in bound.inputs.items():
            target.copy_(feeds[name])
        for index, generator in enumerate(bound.generators.values()):
            generator.manual_seed(mix(seed, 0, index))
        tape.held = bound.forward([])
        return {name: tensor.clone() for name, tensor in bound.outputs.items()}, tape

    def backward(self, tape: Tape, adjoints: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the backward half on a tape, which is closed by it."""
        bound = tape.bound
        for name, target in bound.adjoints.items():
            target.copy_(adjoints[name])
        place = self._memory.gradients.take(self._wrt, self.gradients)
        try:
            run = bound.backward.get(place)
            if run is None:
                binder = Binder(tape.block.memory, place.inside, bound.generators)
                before = bound.forward if self.backward_code.taken else None
                run = bound.backward[place] = self.part(self.backward_code, binder, bound, before)
            run(tape.held)
            found = place.hand_out()
        finally:
            place.taken = False
        for name, tensor in bound.others.items():
            found[name] = tensor.clone()
        tape.close()
        return found

    @property
    def launched(self) -> str:
        """How the halves run, in words: as CUDA graphs, or plainly and why."""
        bound = self._latest() if self._latest is not None else None
        return told([bound.forward, *bound.backward.values()]) if bound is not None else "not yet"

    def part(self, code: Code, binder: Binder, bound: _Bound, before: Replay | None = None) -> Replay:
        """Return one half as calls on a block's tensors."""
        run, recording = code.bind(binder.resolve), self._memory.recording
        return recording.part(run, code.program, before=before, generators=[*bound.generators.values()])

    def _bound(self, block: Block) -> _Bound:
        bound: Any = block.bound.get(self)
        if bound is None or bound.version != self._memory.residents.version:
            with torch.inference_mode(False):
                bound = _Bound(self._memory.residents.version, block, self)
            block.bound[self] = bound
            self._latest = weakref.ref(bound)
        return bound  # type: ignore[no-any-return]
