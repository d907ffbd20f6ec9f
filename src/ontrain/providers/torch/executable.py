"""The executable: a flat list of calls on tensors that exist, made once for a signature."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ontrain.providers.base import OperatorTime
from ontrain.providers.torch.buffers import Buf, Storage
from ontrain.providers.torch.emitter import Instruction
from ontrain.providers.torch.lowering.optimizer import UPDATES

__all__ = ["Arena", "TorchExecutable"]

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Arena:
    """Working memory that all executables of a session share; it grows to the largest plan and stays."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.memory = torch.empty(0, dtype=torch.uint8, device=device)

    def ensure(self, nbytes: int) -> torch.Tensor:
        """Return memory of at least `nbytes`; the same tensor as before if it was large enough."""
        if self.memory.numel() < nbytes:
            # The old block goes first, so that the two never coexist.
            self.memory = torch.empty(0, dtype=torch.uint8, device=self.device)
            self.memory = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        return self.memory


class TorchExecutable:
    """Runs a program: copies the feeds in, makes the calls, hands out copies of the outputs."""

    def __init__(self, program: Sequence[Instruction], inputs: Mapping[str, Buf], outputs: Mapping[str, Buf],
                 nbytes: int, arena: Arena, generators: Sequence[torch.Generator]) -> None:  # fmt: skip
        self._program, self._nbytes, self._arena = program, nbytes, arena
        self._input_bufs, self._output_bufs = inputs, outputs
        self._generators = generators
        # Everything after the last call that is no optimizer update: the part that a guard can hold back.
        self._updates_at = len(program)
        while self._updates_at and _is_update(program[self._updates_at - 1]):
            self._updates_at -= 1
        self._memory: torch.Tensor | None = None
        self._calls: list[Call] = []
        self._inputs: dict[str, torch.Tensor] = {}
        self._outputs: dict[str, torch.Tensor] = {}

    @property
    def planned_bytes(self) -> int:
        """Bytes of the arena that the plan needs."""
        return self._nbytes

    def run(
        self, feeds: Mapping[str, Any], *, rng: tuple[int, int] = (0, 0), guard: str | None = None
    ) -> dict[str, Any]:
        """Run once; see `ontrain.providers.Executable.run`. On CUDA a guard waits for the device."""
        with torch.no_grad():
            self._enter(feeds, rng)
            for fn, args, kwargs in self._calls[: self._updates_at]:
                fn(*args, **kwargs)
            if guard is None or bool(self._outputs[guard]):
                for fn, args, kwargs in self._calls[self._updates_at :]:
                    fn(*args, **kwargs)
            return {name: tensor.clone() for name, tensor in self._outputs.items()}

    def profile(self, feeds: Mapping[str, Any], *, rng: tuple[int, int] = (0, 0)) -> list[OperatorTime]:
        """Run once with a clock around every call."""
        spent: dict[str, float] = defaultdict(float)
        calls: dict[str, int] = defaultdict(int)
        with torch.no_grad():
            self._enter(feeds, rng)
            for (fn, args, kwargs), instruction in zip(self._calls, self._program, strict=True):
                start = time.perf_counter()
                fn(*args, **kwargs)
                if self._arena.device.type == "cuda":
                    torch.cuda.synchronize(self._arena.device)
                name = instruction.node.op_type if instruction.node is not None else "copy"
                spent[name] += (time.perf_counter() - start) * 1e3
                calls[name] += 1
        return [OperatorTime(name, calls[name], ms) for name, ms in sorted(spent.items(), key=lambda i: -i[1])]

    def _enter(self, feeds: Mapping[str, Any], rng: tuple[int, int]) -> None:
        memory = self._arena.ensure(self._nbytes)
        if memory is not self._memory:
            self._bind(memory)
        for name, target in self._inputs.items():
            value = feeds[name]
            if isinstance(value, torch.Tensor):
                target.copy_(value)
            else:
                target.copy_(torch.as_tensor(value))
        for index, generator in enumerate(self._generators):
            generator.manual_seed(_mix(rng[0], rng[1], index))

    def _bind(self, memory: torch.Tensor) -> None:
        """Give every buffer its tensor; views cost nothing from here on."""
        made: dict[int, torch.Tensor] = {}
        untyped = memory.untyped_storage()

        def tensor(buf: Buf) -> torch.Tensor:
            if id(buf) not in made:
                root: Storage = buf.storage.root()
                if root.tensor is None:
                    made[id(buf)] = buf.materialise(untyped, root.offset, self._arena.device)
                else:
                    made[id(buf)] = buf.materialise(root.tensor.untyped_storage(), 0, root.tensor.device)
            return made[id(buf)]

        def resolve(tree: Any) -> Any:
            if isinstance(tree, Buf):
                return tensor(tree)
            if isinstance(tree, list | tuple):
                return type(tree)(resolve(one) for one in tree)
            return tree

        self._calls = [(i.fn, resolve(i.args), {k: resolve(v) for k, v in i.kwargs.items()}) for i in self._program]
        self._inputs = {name: tensor(buf) for name, buf in self._input_bufs.items()}
        self._outputs = {name: tensor(buf) for name, buf in self._output_bufs.items()}
        self._memory = memory


def _is_update(instruction: Instruction) -> bool:
    return instruction.node is not None and instruction.node.op_type in UPDATES


def _mix(seed: int, offset: int, stream: int) -> int:
    """A 63-bit seed from three counters (the finaliser of splitmix64), so that neighbours share nothing."""
    mask = (1 << 64) - 1
    z = (seed * 0x9E3779B97F4A7C15 + offset * 0xBF58476D1CE4E5B9 + stream * 0x94D049BB133111EB + 1) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) >> 1
