"""Forward and backward on any provider: natively where it lays out both halves at once, else as two graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
import torch

from ontrain.graph import Role, draws_random, extract, gradient_of, halves, reads, role_of, set_role, updates_of
from ontrain.internals import tensor_of
from ontrain.providers import Array, ExecutionProvider, ModuleMemory

__all__ = ["create_memory"]


def create_memory(provider: ExecutionProvider, tensors: Mapping[str, torch.Tensor]) -> ModuleMemory:
    """Return the memory of a module's plans, which compiles graphs for it."""
    native = provider.capabilities.module_memory
    return native(tensors) if native is not None else _Fed(provider, tensors)


class _Fed:
    """Parameters and buffers that are handed to the provider with every run."""

    def __init__(self, provider: ExecutionProvider, tensors: Mapping[str, torch.Tensor]) -> None:
        self._provider, self.tensors = provider, dict(tensors)

    def compile(self, model: ir.Model) -> _TwoGraphs:
        """Compile the halves apart."""
        return _TwoGraphs(model, self._provider, self)

    def replace(self, name: str, tensor: torch.Tensor) -> bool:
        """Take another tensor; False if its shape or dtype differs."""
        before, self.tensors[name] = self.tensors[name], tensor
        return before.shape == tensor.shape and before.dtype == tensor.dtype


class _Tape:
    """What backward needs of a forward."""

    def __init__(self, values: dict[str, Array]) -> None:
        self.values = values
        self.open = True


class _TwoGraphs:
    """The halves as two executables; what crosses the cut is output of one and input of the other."""

    def __init__(self, model: ir.Model, provider: ExecutionProvider, fed: _Fed) -> None:
        self._fed, (forward, backward) = fed, halves(model.graph)
        computed = {v for node in forward for v in node.outputs}
        later = list(dict.fromkeys([v for node in backward for v in reads(node)]))
        crossing = [v for v in later if v in computed]
        inputs = model.graph.inputs
        self._resident = [v.name or "" for v in inputs if role_of(v).resident]
        self._users = [v.name or "" for v in inputs if role_of(v) is Role.INPUT]
        self.reads = [v.name or "" for v in later if v in inputs and role_of(v).resident]
        first, second = self._first(model, crossing), self._second(model, later, crossing)
        self.stochastic = draws_random(first.graph) is not None
        state = provider.create_state([])
        self._forward = provider.compile(_without_state(first), state)
        self._backward = provider.compile(_without_state(second), state) if second is not None else None
        self.planned_bytes = sum(half.planned_bytes for half in (self._forward, self._backward) if half is not None)

    def _first(self, model: ir.Model, crossing: Sequence[ir.Value]) -> ir.Model:
        """The forward half, and under which names it returns outputs, new values of buffers, and what crosses."""
        outputs = [v for v in model.graph.outputs if gradient_of(v) is None]
        inputs = [v for v in model.graph.inputs if role_of(v) is not Role.ADJOINT]
        first = extract(model, inputs, [*outputs, *crossing])
        names = [str(v.name) for v in first.graph.outputs]
        self._updates = {str(n.name): t for n in first.graph.outputs if (t := updates_of(n)) is not None}
        self._outputs = {str(v.name): n for v, n in zip(outputs, names, strict=False) if updates_of(v) is None}
        self._stash = {str(v.name): n for v, n in zip(crossing, names[len(outputs) :], strict=True)}
        return first

    def _second(self, model: ir.Model, later: Sequence[ir.Value], crossing: Sequence[ir.Value]) -> ir.Model | None:
        """The backward half, what it is fed, and under which names it returns gradients; None if there are none."""
        gradients = [v for v in model.graph.outputs if gradient_of(v) is not None]
        inputs = [v for v in model.graph.inputs if role_of(v) is Role.ADJOINT or v in later]
        self._inputs, self._gradients = [v.name or "" for v in inputs], dict[str, str]()
        if not gradients:
            return None
        second = extract(model, [*inputs, *crossing], gradients)
        results = zip(gradients, second.graph.outputs, strict=True)
        self._gradients = {gradient_of(v) or "": str(result.name) for v, result in results}
        return second

    def forward(self, feeds: Mapping[str, torch.Tensor], seed: int = 0) -> tuple[dict[str, torch.Tensor], _Tape]:
        """Run the first graph, and write updated buffers back."""
        users = {name: feeds[name].detach() for name in self._users}
        residents = {name: self._fed.tensors[name].detach() for name in self._resident}
        results = self._forward.run({**users, **residents}, rng=(seed, 0))
        # Buffers are written, and a user may change an input: backward reads what forward read.
        reads = {name: value.clone() for name, value in users.items()} if self._gradients else {}
        reads |= {n: residents[n].clone() if n in self._updates.values() else residents[n] for n in self.reads}
        tape = _Tape({**reads, **{name: results[source] for name, source in self._stash.items()}})
        for source, target in self._updates.items():
            with torch.no_grad():
                self._fed.tensors[target].copy_(tensor_of(results[source]))
        return {name: _owned(results[source]) for name, source in self._outputs.items()}, tape

    def backward(self, tape: _Tape, adjoints: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the second graph on what the first one left."""
        assert self._backward is not None
        values = {**tape.values, **{name: a.detach() for name, a in adjoints.items()}}
        results = self._backward.run({name: values[name] for name in (*self._inputs, *self._stash)})
        tape.open, tape.values = False, {}
        return {name: _owned(results[source]) for name, source in self._gradients.items()}


def _without_state(model: ir.Model) -> ir.Model:
    """Make every input one that is fed, and every output one that is handed out."""
    for value in model.graph.inputs:
        set_role(value, Role.INPUT)
    for value in model.graph.outputs:
        value.metadata_props.clear()
    return model


def _owned(value: Array) -> torch.Tensor:
    """A tensor of the caller's own: providers may use an output's memory again."""
    return tensor_of(value).clone()
