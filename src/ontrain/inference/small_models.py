"""Models that consist of small nodes alone: one call of onnxruntime, whatever the sizes.

A classifier of scikit-learn takes onnxruntime some microseconds, and a call from Python for each of its nodes ten times
as long. So a small model whose operators onnxruntime computes, too, runs as a whole on plain arrays of few numbers. Its
second and third runs are both: where the results are not equal to the provider's own, the provider goes on alone. The
first run does not wait for another session. On one thread a model of a node or two runs so whatever the size of its
arrays, as far as onnxruntime's kernel is no slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from ontrain.files import subgraphs, suspect, tensors_of
from ontrain.inference.guarded import guarded
from ontrain.inference.lending import Changes
from ontrain.operators import OPERATORS, Chance, Operator, Stock
from ontrain.stock import stock

__all__ = ["SmallModel", "answered", "computes", "equal_results", "nodes_of", "opened", "recorded"]

_BYTES = 4 << 20
"""Of a small model."""
_NUMBERS = 1 << 13
"""In all feeds of a run."""
_PRODUCTS = 4e6
"""Numbers in the feeds times numbers in the weights: some 50 microseconds of one core."""
_FEW = 2
"""Nodes of a model that is small whatever it is fed: such ones are hardly more than a call of a kernel."""
_COMPARED = 2
"""Runs whose results are compared."""
_HALF = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
"""Of weights whose products onnxruntime adds up in float32, and rounds later than ontrain."""
_USUAL = [getattr(onnx.TensorProto, name) for name in ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT32", "INT64")]
_WIDTHS = {kind: onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize for kind in _USUAL}
"""Bytes of a number by the usual element types."""
_COMPUTED = (Stock.KERNEL, Stock.BODY, Stock.COMPARED)


class SmallModel:
    """A model as one call of onnxruntime; see `of`.

    Attributes:
        is_few: whether it has a node or two.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._proto, self._runs_left, self._ran = proto, _COMPARED, False
        self._session: Any = None
        self._digits = 1e-2 if any(tensor.data_type in _HALF for tensor in proto.graph.initializer) else 1e-5
        weights = {tensor.name: math.prod(tensor.dims) for tensor in proto.graph.initializer}
        self._most = min(_NUMBERS, _PRODUCTS / max(1, sum(weights.values())))
        nodes = [*nodes_of(proto.graph)]
        self.is_few = len(nodes) <= _FEW
        self._most_alone = _ahead_of(nodes) if self.is_few else 0.0
        if self.is_few:
            self._most = min(self._most, self._most_alone)
        self._kinds = {
            value.name: onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            for value in proto.graph.input if value.name not in weights
        }  # fmt: skip

    @classmethod
    def of(cls, proto: onnx.ModelProto) -> SmallModel | None:
        """Return a model that may run so; None for a larger one, and where onnxruntime may compute something else."""
        graph = proto.graph
        if proto.functions or graph.sparse_initializer:
            return None
        if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in graph.initializer):
            return None
        # Measuring a file writes it out, which takes longer than all the rest.
        if not all(map(computes, nodes_of(graph))) or _is_larger(proto, _BYTES):
            return None
        inputs = [value.type for value in graph.input]
        return cls(proto) if all(kind.tensor_type.elem_type for kind in inputs) else None

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any] | None:
        """Return the results as onnxruntime gives them; None before it is known to give the right ones, and for feeds
        that are no plain arrays of few numbers, or that it refuses.
        """
        return None if self._runs_left or not self._takes(feeds) else answered(self._opened, output_names, feeds)

    def compare(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], results: Sequence[Any]) -> bool:
        """Compare onnxruntime's results with the provider's, from the second run on; return False once they differ."""
        if not self._runs_left or not self._takes(feeds):
            return True
        if not self._ran:
            self._ran = True
            return True
        others = answered(self._opened, output_names, feeds)
        if others is None or not equal_results(list(results), others, self._digits):
            return False
        self._runs_left -= 1
        return True

    def _opened(self) -> Any:
        if self._session is None:
            self._session = opened(self._proto.SerializeToString())
        return self._session

    def _takes(self, feeds: Mapping[str, Any]) -> bool:
        if len(feeds) != len(self._kinds):
            return False
        numbers = 0
        for name, array in feeds.items():
            if type(array) is not np.ndarray or array.dtype != self._kinds.get(name) or not array.size:
                return False
            if array.dtype == object and not _are_texts(array):
                return False
            numbers += array.size
        return bool(numbers <= self._most or (numbers < self._most_alone and torch.get_num_threads() == 1))


def _ahead_of(nodes: Sequence[onnx.NodeProto]) -> float:
    """How many numbers are fed where ontrain's kernel of some node is ahead on one thread."""
    records = [(recorded(node), node) for node in nodes]
    sizes = [_ahead_at(record, node) for record, node in records if record is not None]
    return min(sizes, default=0.0)


def _ahead_at(record: Operator, node: onnx.NodeProto) -> float:
    if not callable(record.ahead_from):
        return record.ahead_from
    # A node that reads nothing: onnx_ir looks for what is read.
    bare = onnx.NodeProto(op_type=node.op_type, attribute=node.attribute)
    return record.ahead_of(ir.serde.deserialize_node(bare))


def _are_texts(array: np.ndarray[Any, Any]) -> bool:
    try:
        "".join(array.ravel().tolist())  # which takes a third of the time of a look at each type
    except TypeError:
        return False
    return True


def _is_larger(proto: onnx.ModelProto, size: int) -> bool:
    """Whether a model has more bytes; protobuf measures none of 2 GiB and more, and writes it out to do so."""
    held = sum(math.prod(tensor.dims) * _WIDTHS.get(tensor.data_type, 1) for tensor in tensors_of(proto))
    return bool(held > size or proto.ByteSize() > size)


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph, and of those inside it."""
    for node in graph.node:
        yield node
        for graph_inside in subgraphs(node):
            yield from nodes_of(graph_inside)


def recorded(node: onnx.NodeProto | ir.Node) -> Operator | None:
    """Return what is known of a node's operator; a file may write out the name of the standard's domain."""
    return OPERATORS.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))


def computes(node: onnx.NodeProto | ir.Node) -> bool:
    """Return whether onnxruntime has the operator, and computes the same at each run."""
    record = recorded(node)
    return record is not None and record.stock in _COMPUTED and record.chance is Chance.NEVER


def answered(
    session: Callable[[], Any], output_names: Sequence[str] | None, feeds: Mapping[str, Any]
) -> list[Any] | None:
    """Return what a session of onnxruntime gives; None where it cannot be opened or refuses the feeds.

    The provider, which runs the model then, tells what is wrong.
    """
    try:
        results: list[Any] = session().run(output_names or None, feeds)
    except Exception:  # noqa: BLE001 (onnxruntime's errors share no base)
        return None
    return results


def opened(model: bytes, threads: int = 1) -> Any:
    """Return a session of a model that runs on so many threads, with the guards that onnxruntime needs.

    Raises:
        GraphError: a division or a loop cannot be guarded.
    """
    source: str | bytes = model
    content, changes = suspect(source), Changes()
    if content is not None:
        source, changes = guarded(source, content, None)
    options = stock().SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    # Threads that wait for work at full speed would take the cores from PyTorch's.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Weights of few bits are multiplied with what is fed as it is, not rounded to eight bits.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if changes.plain:
        options.graph_optimization_level = stock().GraphOptimizationLevel.ORT_DISABLE_ALL
    return stock().InferenceSession(source, options, providers=["CPUExecutionProvider"])


def equal_results(a: Any, b: Any, digits: float) -> bool:
    """Return whether results are equal: in type and shape, numbers but for rounding to so many digits."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return _close(a, b, digits) if a.dtype.kind == "f" else np.array_equal(a, b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(equal_results(x, y, digits) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(equal_results(a[key], b[key], digits) for key in a)
    if isinstance(a, float) and isinstance(b, float):
        return _close(np.asarray(a), np.asarray(b), digits)
    return type(a) is type(b) and bool(a == b)


def _close(a: Any, b: Any, digits: float) -> bool:
    """Whether numbers are equal but for rounding: a sum near zero is as exact as the largest one."""
    finite = np.abs(a[np.isfinite(a)])
    largest = max(1.0, float(finite.max(initial=0.0)))
    return bool(np.allclose(a, b, rtol=digits, atol=digits / 10 * largest, equal_nan=True))
