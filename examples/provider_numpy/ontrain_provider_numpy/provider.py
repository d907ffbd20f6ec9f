"""`NumpyExecutionProvider`: a dictionary of values, and one node after the other."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain import ProviderError
from ontrain.functions import expand, has_body
from ontrain.graph import describe, rebuild, role_of, source_of, updates_of
from ontrain.providers import OperatorTime, StateSpec
from ontrain_provider_numpy.kernels import KERNELS


class NumpyState(dict[str, Any]):
    """Arrays by name. Assignment keeps dtype and shape."""

    def __setitem__(self, name: str, value: Any) -> None:
        array = np.asarray(value)
        super().__setitem__(name, array.astype(self[name].dtype).reshape(self[name].shape) if name in self else array)

    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.values())


class NumpyExecutable:
    """Walks the graph, calling a kernel for each node."""

    def __init__(self, model: ir.Model, state: NumpyState) -> None:
        self._graph, self._state = model.graph, state
        constants = {v.name: v.const_value.numpy() for v in model.graph.initializers.values() if v.const_value}
        self._constants: dict[str | None, Any] = dict(constants)
        self.planned_bytes = sum(_nbytes(value) for node in model.graph for value in node.outputs)

    def run(
        self, feeds: Mapping[str, Any], *, rng: tuple[int, int] = (0, 0), guard: str | None = None
    ) -> dict[str, Any]:
        return self._run(feeds, guard, defaultdict(float))

    def profile(self, feeds: Mapping[str, Any], *, rng: tuple[int, int] = (0, 0)) -> list[OperatorTime]:
        spent: dict[str, float] = defaultdict(float)
        self._run(feeds, None, spent)
        calls = Counter(node.op_type for node in self._graph)
        return [OperatorTime(op, calls[op], ms) for op, ms in sorted(spent.items(), key=lambda item: -item[1])]

    def _run(self, feeds: Mapping[str, Any], guard: str | None, spent: dict[str, float]) -> dict[str, Any]:
        values = dict(self._constants)
        for value in self._graph.inputs:
            given = self._state if role_of(value).resident else feeds
            values[value.name] = np.asarray(given[value.name or ""], value.dtype.numpy() if value.dtype else None)
        for node in self._graph:
            start = time.perf_counter()
            attributes = {name: attr.value for name, attr in node.attributes.items()}
            inputs = [None if v is None else values[v.name] for v in node.inputs]
            made = KERNELS[node.op_type](attributes, *inputs)
            for value, array in zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=True):
                # numpy widens float32 beside a Python number or a 0-d float64; the graph says what is meant.
                values[value.name] = np.asarray(array, value.dtype.numpy() if value.dtype else None)
            spent[node.op_type] += (time.perf_counter() - start) * 1e3
        outputs = {v.name or "": values[v.name] for v in self._graph.outputs if updates_of(v) is None}
        if guard is None or outputs[guard]:
            for value in self._graph.outputs:
                target = updates_of(value)
                if target is not None:
                    self._state[target] = values[value.name]
        return outputs


def _nbytes(value: ir.Value) -> int:
    assert value.shape is not None and value.dtype is not None
    return int(np.prod(value.shape.numpy())) * value.dtype.itemsize


class NumpyExecutionProvider:
    """Runs graphs of the operators in `KERNELS`, and of those that can be written in them.

    Args:
        device: "cpu".
    """

    name = "NumpyExecutionProvider"

    def __init__(self, device: str = "cpu") -> None:
        if device != "cpu":
            raise ProviderError(f"{self.name} does not run on {device!r}", way_out="set the device to 'cpu'")

    def supports(self, node: ir.Node) -> str | None:
        if (not node.domain and node.op_type in KERNELS) or has_body(node):
            return None
        return f"there is no kernel for {node.op_type}"

    def create_state(self, specs: Sequence[StateSpec]) -> NumpyState:
        return NumpyState({spec.name: np.zeros(spec.shape, spec.dtype.numpy()) for spec in specs})

    def compile(self, model: ir.Model, state: NumpyState) -> NumpyExecutable:
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
                return NumpyExecutable(model, state)
            model = rebuild(model, body)
