"""The executable: straight-line calls on tensors that exist, made once for a signature."""

from __future__ import annotations

import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ontrain.providers.base import OperatorTime
from ontrain.providers.torch.binder import Binder
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.code import codes
from ontrain.providers.torch.emitter import Instruction
from ontrain.providers.torch.heap import empty
from ontrain.providers.torch.lowering.optimizer import UPDATES
from ontrain.providers.torch.plan import outside_bytes
from ontrain.providers.torch.products import Product, products_of
from ontrain.providers.torch.replay import Recording, Replay, told

__all__ = ["Arena", "TorchExecutable", "mix"]


class Arena:
    """Working memory that all executables of a session share; it grows to the largest plan and stays."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.memory = torch.empty(0, dtype=torch.uint8, device=device)
        self.bound: weakref.WeakSet[TorchExecutable] = weakref.WeakSet()
        """Those whose tensors lie in `memory`."""

    def ensure(self, nbytes: int) -> torch.Tensor:
        """Return memory of at least `nbytes`; the same tensor as before if it was large enough."""
        if self.memory.numel() < nbytes:
            # The old block goes first, so that the two never coexist.
            for one in self.bound:
                one.unbind()
            self.bound.clear()
            self.memory = torch.empty(0, dtype=torch.uint8, device=self.device)
            self.memory = empty(nbytes, self.device)
        return self.memory


class TorchExecutable:
    """Runs a program: copies the feeds in, makes the calls, hands out copies of the outputs."""

    def __init__(self, program: Sequence[Instruction], inputs: Mapping[str, Buf], outputs: Mapping[str, Buf],
                 nbytes: int, arena: Arena, generators: Sequence[torch.Generator],
                 recording: Recording) -> None:  # fmt: skip
        self._program, self._nbytes, self._arena = program, nbytes, arena
        self._input_bufs, self._output_bufs = inputs, outputs
        self._generators, self._recording = generators, recording
        # Everything after the last call that is no optimizer update: the part that a guard can hold back.
        updates_at = len(program)
        while updates_at and _is_update(program[updates_at - 1]):
            updates_at -= 1
        self._codes = codes([program[:updates_at], program[updates_at:]])
        self._memory: torch.Tensor | None = None
        self._parts: list[Replay] = []
        self._inputs: dict[str, torch.Tensor] = {}
        self._outputs: dict[str, torch.Tensor] = {}

    @property
    def planned_bytes(self) -> int:
        """Bytes of the arena that the plan needs, of results that kernels return at one time at most, and of packs."""
        return self._nbytes + outside_bytes(self._program)

    @property
    def launched(self) -> str:
        """How runs are made, in words: as CUDA graphs, or plainly and why."""
        return told(self._parts) if self._parts else "not yet"

    @property
    def products(self) -> Counter[Product]:
        """The matrix products of one run."""
        return products_of(self._program)

    def run(
        self, feeds: Mapping[str, Any], *, rng: tuple[int, int] = (0, 0), guard: str | None = None
    ) -> dict[str, Any]:
        """Run once; see `ontrain.providers.Executable.run`. On CUDA a guard waits for the device."""
        with torch.no_grad():
            self._enter(feeds, rng)
            step, update = self._parts
            held = step([])
            if guard is None or bool(self._outputs[guard]):
                update(held)
            return {name: tensor.clone() for name, tensor in self._outputs.items()}

    def profile(self, feeds: Mapping[str, Any], *, rng: tuple[int, int] = (0, 0)) -> list[OperatorTime]:
        """Run once with a clock around every call."""
        spent: dict[str, float] = defaultdict(float)
        calls: dict[str, int] = defaultdict(int)
        start = 0.0

        def tick(number: int) -> None:
            nonlocal start
            if self._arena.device.type == "cuda":
                torch.cuda.synchronize(self._arena.device)
            node = self._program[number].node
            name = node.op_type if node is not None else "copy"
            spent[name] += (time.perf_counter() - start) * 1e3
            calls[name] += 1
            start = time.perf_counter()

        with torch.no_grad():
            self._enter(feeds, rng)
            (code,) = codes([self._program], timed=True)
            run = code.bind(Binder(self._arena.ensure(self._nbytes)).resolve, tick=tick)
            start = time.perf_counter()
            run([])
        return [OperatorTime(name, calls[name], ms) for name, ms in sorted(spent.items(), key=lambda i: -i[1])]

    def _enter(self, feeds: Mapping[str, Any], rng: tuple[int, int]) -> None:
        memory = self._arena.ensure(self._nbytes)
        if memory is not self._memory:
            self._bind(memory)
        for name, target in self._inputs.items():
            value = feeds[name]
            if isinstance(value, torch.Tensor):
                target.copy_(value)
            elif isinstance(value, int | float):
                target.fill_(value)
            else:
                target.copy_(torch.as_tensor(value))
        for index, generator in enumerate(self._generators):
            generator.manual_seed(mix(rng[0], rng[1], index))

    def unbind(self) -> None:
        """Let go of the working memory; the next run takes what the arena has then."""
        self._memory, self._parts, self._inputs, self._outputs = None, [], {}, {}

    def _bind(self, memory: torch.Tensor) -> None:
        self._arena.bound.add(self)
        binder = Binder(memory)
        self._parts = []
        for code in self._codes:
            before = self._parts[-1] if code.taken else None
            run = code.bind(binder.resolve)
            self._parts.append(self._recording.part(run, code.program, before=before, generators=self._generators))
        self._inputs, self._outputs = binder.tensors(self._input_bufs), binder.tensors(self._output_bufs)
        self._memory = memory


def _is_update(instruction: Instruction) -> bool:
    return instruction.node is not None and instruction.node.op_type in UPDATES


def mix(seed: int, offset: int, stream: int) -> int:
    """A 63-bit seed from three counters (the finaliser of splitmix64), so that neighbours share nothing."""
    mask = (1 << 64) - 1
    z = (seed * 0x9E3779B97F4A7C15 + offset * 0xBF58476D1CE4E5B9 + stream * 0x94D049BB133111EB + 1) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) >> 1
