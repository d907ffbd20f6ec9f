"""Models that onnxruntime runs as a whole where plans take much longer, and its results are the same.

That is so for batches of ever new sizes, as the cache of a decoder makes them: a plan holds one combination of sizes,
and takes a hundred times as long to make as to run. So on a CPU a model all of whose operators onnxruntime computes,
too, gets a session there once it has had several plans. The results of the next runs at new sizes are compared: where
they are equal, onnxruntime runs all further sizes; where not, each gets a plan.

And it is so for models with operators whose kernels in onnxruntime multiply numbers of few bits: some early runs of
such a model are compared, and onnxruntime runs all that follow, whatever their sizes. Where numbers midway between two
whole ones may go to either, the first run is among those, and its results are onnxruntime's already: no output changes
from one run to the next.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch

from ontrain.files import tensors_of
from ontrain.inference.small_models import answered, computes, nodes_of, opened, recorded
from ontrain.operators import Outrun, Rows
from ontrain.session import PLANS, Recent

__all__ = ["HandedOver"]

_PLANNED = 4
"""Combinations of sizes that get plans whatever comes: a program that has so few is served best by them."""
_PLANNED_RUNS = 1
"""Runs of a model that is outrun, without ties, before the first that is compared: the first makes no other session."""
_COMPARED = 2
"""Runs whose results are compared."""
_BYTES = 1 << 30
"""Of weights: onnxruntime has a copy of them."""
_DIGITS, _HALF_DIGITS = 1e-4, 1e-2
"""Of the largest number of an output."""
_TIES = 5e-2
"""Of the length of an output, where numbers midway between two whole ones may go to either: each moves what follows."""


class HandedOver:
    """A model as one call of onnxruntime; see `of`.

    Attributes:
        outrun: whether onnxruntime is to run sizes that have a plan, too.

    Args:
        read: gives the model with its data.
        kinds: dtypes of the inputs by name.
        ways: in which onnxruntime's kernels outrun ontrain's; empty where they do not.
        caches: inputs that may be empty, see `_caches`.
    """

    def __init__(
        self, read: Callable[[], onnx.ModelProto], kinds: Mapping[str, np.dtype[Any]], ways: Collection[Outrun],
        caches: Collection[str] = (),
    ) -> None:  # fmt: skip
        self._read, self._kinds, self._runs_left, self._caches = read, kinds, _COMPARED, caches
        self.outrun, self._ties = bool(ways), Outrun.BUT_TIES in ways
        self._first = 0 if self._ties else _PLANNED_RUNS if self.outrun else _PLANNED
        self._planned: Recent[Hashable, bool] = Recent(PLANS)
        self._count = 0
        self._session: Any = None
        self._differs = False

    @classmethod
    def of(cls, proto: onnx.ModelProto, read: Callable[[], onnx.ModelProto]) -> HandedOver | None:
        """Return a model that may run so; None where onnxruntime may compute something else, or needs much memory."""
        graph, fed = proto.graph, {tensor.name for tensor in proto.graph.initializer}
        inputs = {v.name: v.type.tensor_type for v in graph.input if v.name not in fed}
        ways = {record.outrun for node in nodes_of(graph) if (record := recorded(node)) is not None}
        ways -= {Outrun.NO, Outrun.ALONE}
        if not ways and all(dim.HasField("dim_value") for kind in inputs.values() for dim in kind.shape.dim):
            return None
        if (
            proto.functions
            or graph.sparse_initializer
            or not all(computes(n) and not _adds(n) for n in nodes_of(graph))
        ):
            return None
        kinds = {name: _dtype_of(kind.elem_type) for name, kind in inputs.items()}
        nbytes = sum(math.prod(t.dims) * _dtype_of(t.data_type).itemsize for t in tensors_of(proto))
        if nbytes > _BYTES or np.dtype(object) in kinds.values():
            return None
        return cls(read, kinds, ways, _caches(graph, kinds))

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any] | None:
        """Return the results as onnxruntime gives them; None for sizes whose plan is to run, before the results are
        known to be right, and for feeds that are no plain arrays, or that it refuses.
        """
        if self._runs_left or self._differs or not self._takes(feeds):
            return None
        if not self.outrun and _sizes(feeds) in self._planned:
            return None
        return answered(lambda: self._session, output_names, feeds)  # or None: results of another thread have differed

    def compare(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], results: list[Any]) -> list[Any]:
        """Count a run that had a plan, or the sizes that have one, and compare its results once there were several.

        Returns:
            the results that the run is to have: onnxruntime's where they may differ in ties, and in nothing else.
        """
        if self._differs or not self._takes(feeds):
            return results
        if not self.outrun:
            sizes = _sizes(feeds)
            if sizes in self._planned:
                return results
            self._planned.put(sizes, True)
        self._count += 1
        if self._count <= self._first or not self._runs_left:
            return results
        others = self._equal(output_names, feeds, results)
        if others is None:
            self._differs, self._session = True, None
            return results
        self._runs_left = max(0, self._runs_left - 1)  # at 0 other threads may take the session
        return others if self._ties else results

    def _equal(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], results: Sequence[Any]
    ) -> list[Any] | None:
        """What onnxruntime gives, if that is the same."""
        others = answered(self._opened, output_names, feeds)
        if others is None or len(results) != len(others):
            return None
        ties = self._ties and _multiplies_bytes()
        return others if all(_close(a, b, ties) for a, b in zip(results, others, strict=True)) else None

    def _opened(self) -> Any:
        session = self._session
        if session is None:
            session = self._session = opened(_exact(self._read()).SerializeToString(), torch.get_num_threads())
        return session

    def _takes(self, feeds: Mapping[str, Any]) -> bool:
        return len(feeds) == len(self._kinds) and all(
            type(array) is np.ndarray and array.dtype == self._kinds.get(name) and (array.size or name in self._caches)
            for name, array in feeds.items()
        )


def _caches(graph: onnx.GraphProto, names: Collection[str]) -> frozenset[str]:
    """The inputs that only have something joined to them, as the caches of a decoder: empty ones are no danger.

    Other kernels of onnxruntime may end the process where an operand has no elements.
    """
    others = {name for node in nodes_of(graph) if not _joins(node) for name in node.input}
    return frozenset(names) - others - {value.name for value in graph.output}


def _joins(node: onnx.NodeProto) -> bool:
    record = recorded(node)
    return record is not None and (record.rows is Rows.JOINED or record.reads_shape)


def _adds(node: onnx.NodeProto) -> bool:
    """Whether a node scatters numbers that it reduces: onnxruntime's threads write over each other there."""
    return any(attribute.name == "reduction" and attribute.s != b"none" for attribute in node.attribute)


def _sizes(feeds: Mapping[str, Any]) -> Hashable:
    return frozenset([(name, array.shape) for name, array in feeds.items()])


def _dtype_of(element: int) -> np.dtype[Any]:
    """The dtype of an element type; that of objects for texts, and where something is no tensor."""
    known = onnx.TensorProto.DataType.values()
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element) if element and element in known else object)


def _exact(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without leave to round what it multiplies with weights of few bits."""
    for node in nodes_of(proto.graph):
        if node.op_type == "MatMulNBits":
            rest = [attribute for attribute in node.attribute if attribute.name != "accuracy_level"]
            del node.attribute[:]
            node.attribute.extend(rest)
    return proto


@functools.cache
def _multiplies_bytes() -> bool:
    """Whether onnxruntime multiplies bytes on this processor without a bound that their products exceed."""
    a, b = np.full((2, 64), 255, np.uint8), np.full((64, 16), 127, np.int8)
    x, y = (onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in (("x", 2), ("y", 6)))
    node, weight = onnx.helper.make_node("MatMulInteger", ["x", "w"], ["y"]), onnx.numpy_helper.from_array(b, "w")
    graph = onnx.helper.make_graph([node], "product", [x], [y], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return np.array_equal(opened(model.SerializeToString()).run(None, {"x": a})[0], a.astype(np.int32) @ b)


def _close(a: Any, b: Any, ties: bool) -> bool:
    """Whether arrays are equal, numbers but for rounding, and where there are ties but for those."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if a.dtype.kind != "f":
        return np.array_equal(a, b)
    if ties:
        both = np.isfinite(a) & np.isfinite(b)
        apart, length = (float(np.linalg.norm(numbers[both].astype(np.float64))) for numbers in (a - b, a))
        return np.array_equal(a[~both], b[~both], equal_nan=True) and apart <= _TIES * length
    finite = a[np.isfinite(a)]
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    digits = _HALF_DIGITS if a.dtype.itemsize < 4 else _DIGITS
    return bool(np.allclose(a, b, rtol=0, atol=digits * largest, equal_nan=True))
