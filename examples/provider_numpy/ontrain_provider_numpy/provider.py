"""`NumpyExecutionProvider`: a dictionary of values, and one node after the other."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain import ProviderError
from ontrain.functions import expand, has_body
from ontrain.graph import WorkingMemory, describe, rebuild, role_of, source_of, updates_of
from ontrain.providers import Capabilities, NodeTime, OperatorTime, State, StateSpec, own_state
from ontrain_provider_numpy.kernels import KERNELS


class NumpyState(dict[str, Any]):
    """Arrays by name. Assignment keeps dtype and shape."""

    def __setitem__(self, name: str, value: Any) -> None:
        array = np.asarray(value)
        super().__setitem__(name, array.astype(self[name].dtype).reshape(self[name].shape) if name in self else array)

    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.values())


class NumpyExecutable:
    """Walks the graph, calling a kernel for each node, and drops what no later node reads."""

    def __init__(self, model: ir.Model, state: NumpyState) -> None:
        self._graph, self._state = model.graph, state
        constants = {v.name: v.const_value.numpy() for v in model.graph.initializers.values() if v.const_value}
        self._constants: dict[str | None, Any] = dict(constants)
        last = {value: node for node in model.graph for value in (*node.outputs, *node.inputs) if value is not None}
        self._dead: dict[ir.Node, list[ir.Value]] = defaultdict(list)
        for value, node in last.items():
            if value.producer() is not None and not value.is_graph_output():
                self._dead[node].append(value)
        self.planned_bytes = alive = 0
        for node in model.graph:
            alive += _nbytes(node.outputs)
            self.planned_bytes = max(self.planned_bytes, alive)
            alive -= _nbytes(self._dead[node])

    def run(
        self, feeds: Mapping[str, Any], *, rng: tuple[int, int] = (0, 0), guard: str | None = None
    ) -> dict[str, Any]:
        return self._run(feeds, guard, defaultdict(float))

    def profile(self, feeds: Mapping[str, Any], *, rng: tuple[int, int] = (0, 0)) -> list[OperatorTime]:
        spent: dict[str, float] = defaultdict(float)
        self._run(feeds, None, spent)
        calls = Counter(node.op_type for node in self._graph)
        return [OperatorTime(op, calls[op], ms) for op, ms in sorted(spent.items(), key=lambda item: -item[1])]

    def trace(
        self, feeds: Mapping[str, Any], *, rng: tuple[int, int] = (0, 0)
    ) -> tuple[dict[str, Any], list[NodeTime]]:
        return self.run(feeds, rng=rng), []

    def _run(self, feeds: Mapping[str, Any], guard: str | None, spent: dict[str, float]) -> dict[str, Any]:
        values = dict(self._constants)
        for value in self._graph.inputs:
            tensors = self._state if role_of(value).resident else feeds
            values[value.name] = np.asarray(tensors[value.name or ""], value.dtype.numpy() if value.dtype else None)
        for node in self._graph:
            start = time.perf_counter()
            attributes = {name: attr.value for name, attr in node.attributes.items()}
            inputs = [None if v is None else values[v.name] for v in node.inputs]
            results = KERNELS[node.op_type](attributes, *inputs)
            for value, array in zip(node.outputs, results if isinstance(results, tuple) else (results,), strict=True):
                # numpy widens float32 beside a Python number or a 0-d float64; the graph says what is meant.
                # A view would keep the whole alive: each result has memory of its own.
                values[value.name] = np.array(array, value.dtype.numpy() if value.dtype else None)
            for value in self._dead[node]:
                del values[value.name]
            spent[node.op_type] += (time.perf_counter() - start) * 1e3
        outputs = {v.name or "": values[v.name] for v in self._graph.outputs if updates_of(v) is None}
        if guard is None or outputs[guard]:
            for value in self._graph.outputs:
                target = updates_of(value)
                if target is not None:
                    self._state[target] = values[value.name]
        return outputs


def _nbytes(values: Iterable[ir.Value]) -> int:
    return sum(int(np.prod(v.shape.numpy()) * v.dtype.itemsize) for v in values if v.shape is not None and v.dtype)


def memory_of(graph: ir.Graph) -> WorkingMemory:
    """Every value has memory of its own, from its node to its last reader; outputs have theirs to the end."""
    sizes = {value: _nbytes([value]) for node in graph for value in node.outputs}
    return WorkingMemory(root={v: v for v in sizes}, size=sizes, lasting=set(graph.outputs), scratch={})


class NumpyExecutionProvider:
    """Runs graphs of the operators in `KERNELS`, and of those that can be written in them.

    Args:
        device: "cpu".
    """

    name = "NumpyExecutionProvider"
    device = "cpu"
    capabilities = Capabilities(memory_of=memory_of)

    def __init__(self, device: str = "cpu") -> None:
        if device != "cpu":
            raise ProviderError(f"{self.name} does not run on {device!r}", way_out="set the device to 'cpu'")

    def supports(self, node: ir.Node) -> str | None:
        if (not node.domain and node.op_type in KERNELS) or has_body(node):
            return None
        return f"there is no kernel for {node.op_type}"

    def create_state(self, specs: Sequence[StateSpec]) -> NumpyState:
        return NumpyState({spec.name: np.zeros(spec.shape, spec.dtype.numpy()) for spec in specs})

    def compile(self, model: ir.Model, state: State) -> NumpyExecutable:
        def body(op: Any, node: ir.Node, inputs: list[ir.Value | None]) -> Any:
            return None if not node.domain and node.op_type in KERNELS else expand(op, node, inputs)

        while True:
            for node in model.graph:
                reason = self.supports(node)
                if reason is not None:
                    raise ProviderError(
                        f"{self.name} cannot run {node.op_type}", node=describe(node), source=source_of(node),
                        reason=reason, way_out="add it to KERNELS, or run on another provider",
                    )  # fmt: skip
            if all(not node.domain and node.op_type in KERNELS for node in model.graph):
                return NumpyExecutable(model, own_state(state, NumpyState, self.name))
            model = rebuild(model, body)
