"""Sparse initializers and constants of a file, made dense: what runs and trains models knows dense tensors only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from ontrain.errors import GraphError
from ontrain.files.inner_graphs import subgraphs
from ontrain.files.tensors import check_tensor

__all__ = ["made_dense"]

_CONSTANT, _ATTRIBUTE = "Constant", "sparse_value"
_MOST, _RATIO = 2**24, 1000
"""Elements that a sparse tensor may have when it is dense, or so many times the values that the file holds."""


def made_dense(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return the model with its sparse initializers and constants as dense ones; the model itself where it has none.

    Args:
        proto: stays as it is.
        name: what messages call the model.

    Raises:
        GraphError: a sparse tensor is damaged, of another kind than numbers, or too large to be dense.
    """
    if not _has_sparse(proto):
        return proto
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        _constants(nodes, name)
    for graph in _graphs(model):
        for sparse in graph.sparse_initializer:
            graph.initializer.append(_dense(sparse, name))
        graph.ClearField("sparse_initializer")
    return model


def _has_sparse(proto: onnx.ModelProto) -> bool:
    if any(graph.sparse_initializer or _any_sparse(graph.node) for graph in _graphs(proto)):
        return True
    return any(_any_sparse(function.node) for function in proto.functions)


def _any_sparse(nodes: Iterable[onnx.NodeProto]) -> bool:
    return any(
        attribute.name == _ATTRIBUTE for node in nodes if node.op_type == _CONSTANT for attribute in node.attribute
    )


def _graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    yield from _inside(proto.graph)
    for function in proto.functions:
        for node in function.node:
            for inner in subgraphs(node):
                yield from _inside(inner)


def _inside(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    # A message nests a hundred deep at most, so that recursion ends.
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _inside(inner)


def _constants(nodes: Iterable[onnx.NodeProto], name: str) -> None:
    for node in nodes:
        for inner in subgraphs(node):
            _constants(inner.node, name)
        for attribute in node.attribute:
            if node.op_type == _CONSTANT and attribute.name == _ATTRIBUTE and not attribute.ref_attr_name:
                dense = _dense(attribute.sparse_tensor, name)
                attribute.Clear()
                attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
                attribute.t.CopyFrom(dense)


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    """A tensor of the standard's sparse form: values, and their places in row-major order or their coordinates."""
    what = f"the sparse tensor {sparse.values.name!r} in {name}"
    for part in (sparse.values, sparse.indices):
        check_tensor(part, f"in {name}")
        if part.data_location == onnx.TensorProto.EXTERNAL:
            raise GraphError(f"{what} lies in a file of its own", way_out="store it in the model")
    if sparse.values.data_type == onnx.TensorProto.STRING or sparse.indices.data_type != onnx.TensorProto.INT64:
        raise GraphError(f"{what} is damaged", reason="its values are no numbers, or its indices no int64")
    dims, count = list(sparse.dims), math.prod(sparse.dims)
    most = max(_MOST, _RATIO * math.prod(sparse.values.dims))
    if any(size < 0 for size in dims) or count > most:
        raise GraphError(
            f"{what} has the shape {dims}", reason=f"of its values, a dense tensor may have 0 to {most} elements",
            way_out="run the model on CPUExecutionProvider, or save it with a dense tensor",
        )  # fmt: skip
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    places = indices if indices.ndim == 1 else _places(indices, dims)
    if values.ndim != 1 or places is None or places.shape != values.shape or _outside(places, count):
        raise GraphError(
            f"{what} is damaged",
            reason=f"values of the shape {list(values.shape)} and indices of the shape {list(indices.shape)} "
            f"do not fit the shape {dims}",
        )
    dense = np.zeros(count, values.dtype)
    dense[places] = values
    return numpy_helper.from_array(dense.reshape(dims), sparse.values.name)


def _places(indices: np.ndarray, dims: list[int]) -> np.ndarray | None:
    """Places in row-major order of coordinates, None where these are damaged."""
    if indices.ndim != 2 or indices.shape[1] != len(dims) or ((indices < 0) | (indices >= dims)).any():
        return None
    steps = [math.prod(dims[at + 1 :]) for at in range(len(dims))]
    return indices @ np.array(steps, np.int64)


def _outside(places: np.ndarray, count: int) -> bool:
    return bool(((places < 0) | (places >= count)).any())
