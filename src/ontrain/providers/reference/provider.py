"""`ReferenceExecutionProvider`: bodies inlined, run by `onnx.reference`, state held in numpy arrays."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op

from ontrain.errors import ProviderError
from ontrain.functions import attributes_of, expand, has_body, inline_all, is_plain, refusing, without_negatives
from ontrain.graph import CORRECTIONS, OPSET, Builder, nbytes, rebuild, role_of, source_of, static_dims, updates_of
from ontrain.operators import Evaluator, record_of
from ontrain.providers import base
from ontrain.providers.base import Capabilities, NodeTime, OperatorTime, State, StateSpec, as_array

__all__ = ["ReferenceExecutionProvider"]

Array = npt.NDArray[np.generic]
_FEW = 1 << 16
"""Elements that a loop of Python computes in a moment."""


class _NumpyState:
    def __init__(self, specs: Sequence[StateSpec]) -> None:
        self._arrays: dict[str, Array] = {s.name: np.zeros(s.shape, s.dtype.numpy()) for s in specs}

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __setitem__(self, name: str, value: base.Array) -> None:
        old = self._arrays[name]
        self._arrays[name] = as_array(value).astype(old.dtype).reshape(old.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())


_stream: ContextVar[np.random.RandomState] = ContextVar("_stream")
"""What the run that a thread is making draws from."""


class Dropout(OpRun):
    """onnx's takes a new seed from the system at each call."""

    def _run(
        self,
        x: npt.NDArray[np.floating],
        ratio: Array | None = None,
        training_mode: Array | None = None,
        seed: int | None = None,
    ) -> tuple[Array, ...]:
        share = (0.5 if ratio is None else float(np.asarray(ratio))) if training_mode else 0.0
        mask: Array = np.greater_equal(_stream.get().random_sample(x.shape), share)
        dropped: Array = np.where(mask, x * (1 / (1 - share)), 0).astype(x.dtype)
        return (dropped, mask)[: len(self.onnx_node.output)]


class _ReferenceExecutable:
    def __init__(self, model: ir.Model, state: State) -> None:
        plain = inline_all(rebuild(inline_all(model, refusing), _what_is_missing), refusing)
        self._state = state
        self._graph = plain.graph
        self._resident = [v.name for v in plain.graph.inputs if role_of(v).resident and v.name]
        self._fed = {
            v.name: v.dtype.numpy() for v in plain.graph.inputs if not role_of(v).resident and v.name and v.dtype
        }
        try:
            self._evaluator = ReferenceEvaluator(ir.to_proto(plain), new_ops=[*CORRECTIONS, Dropout])
        except (ValueError, TypeError, AttributeError, LookupError, RuntimeError) as error:
            raise ProviderError(
                "onnx's evaluator does not take the graph", reason=f"{type(error).__name__}: {error}",
                way_out="check the attributes of its nodes: a file may be damaged",
            ) from error  # fmt: skip

    @property
    def planned_bytes(self) -> int:
        return sum(nbytes(value) or 0 for node in self._graph for value in node.outputs)

    def run(
        self, feeds: Mapping[str, base.Array], *, rng: tuple[int, int] = (0, 0), guard: str | None = None
    ) -> dict[str, Array]:
        arrays = {name: as_array(feeds[name]).astype(dtype) for name, dtype in self._fed.items()}
        arrays.update((name, self._state[name]) for name in self._resident)
        token = _stream.set(np.random.RandomState(hash(rng) & 0xFFFFFFFF))
        try:
            with np.errstate(all="ignore"):
                results = self._evaluator.run(None, arrays)
        finally:
            _stream.reset(token)
        named = list(zip(self._graph.outputs, results, strict=True))
        outputs = {v.name or "": np.asarray(result) for v, result in named if updates_of(v) is None}
        if guard is None or bool(outputs[guard]):
            for value, result in named:
                target = updates_of(value)
                if target is not None:
                    self._state[target] = result
        return outputs

    def profile(self, feeds: Mapping[str, base.Array], *, rng: tuple[int, int] = (0, 0)) -> list[OperatorTime]:
        start = time.perf_counter()
        self.run(feeds, rng=rng)
        total = (time.perf_counter() - start) * 1e3
        calls: dict[str, int] = defaultdict(int)
        for node in self._graph:
            calls[node.op_type] += 1
        # The evaluator offers no hook: its time is reported as one entry rather than guessed at per operator.
        return [OperatorTime("ReferenceEvaluator", sum(calls.values()), total)]

    def trace(
        self, feeds: Mapping[str, base.Array], *, rng: tuple[int, int] = (0, 0)
    ) -> tuple[dict[str, base.Array], list[NodeTime]]:
        return self.run(feeds, rng=rng), []


def _not_implemented(node: ir.Node) -> str | None:
    try:
        load_op(node.domain, node.op_type, OPSET)
    except Exception as error:  # noqa: BLE001 (onnx raises several unrelated classes here)
        return f"onnx.reference does not implement it: {error}"
    return None


def _what_is_missing(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
    """The body of an operator that onnx's evaluator lacks, has in part only, or computes too slowly for its size.

    And a loss whose labels numpy would count from the last class, if they are negative.
    """
    record = record_of(node)
    if record.labels is not None and is_plain(node):
        labels, settings = inputs[record.labels], attributes_of(node, {})
        assert labels is not None
        operands = list(inputs)
        operands[record.labels] = without_negatives(op, labels, settings.get("ignore_index"))
        results = op.call("", node.op_type, operands, settings, len(node.outputs))
        return [results] if isinstance(results, ir.Value) else list(results)
    missing = record.evaluator is not Evaluator.WHOLE or _not_implemented(node) is not None
    if not missing and record.loops:
        known = all(value is None or value.const_value is not None for value in node.inputs[1:])
        missing = known and math.prod(static_dims(node.outputs[0])) > _FEW
    return expand(op, node, inputs) if is_plain(node) and missing else None


class ReferenceExecutionProvider:
    """Runs any graph of standard operators, one numpy call a node. For tests and for settling arguments."""

    name = "ReferenceExecutionProvider"
    device = "cpu"
    capabilities = Capabilities()

    def supports(self, node: ir.Node) -> str | None:
        """None if onnx's evaluator implements the operator or it is a composite with a body."""
        if has_body(node) is not None:
            return None
        return _not_implemented(node)

    def create_state(self, specs: Sequence[StateSpec]) -> _NumpyState:
        """Allocate one array a tensor."""
        return _NumpyState(specs)

    def compile(self, model: ir.Model, state: State) -> _ReferenceExecutable:
        """Inline composites and hand the graph to onnx."""
        for node in model.graph:
            reason = self.supports(node)
            if reason is not None:
                raise ProviderError(
                    f"{self.name} cannot run {node.op_type}", node=node.name, source=source_of(node), reason=reason
                )
        return _ReferenceExecutable(model, state)
