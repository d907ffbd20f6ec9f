"""onnxruntime's values over arrays of any dtype, and arrays of its values.

Outside of the rooms: sessions of onnxruntime's providers need it, which need nothing else of ontrain's engine.

numpy knows bfloat16, the floats of eight bits and the integers of four by `ml_dtypes` only, and onnxruntime's Python
binding knows none of its arrays. It takes their bytes, and tells where the bytes of a result lie.
"""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from typing import Any

import numpy as np

from ontrain.errors import InputError
from ontrain.stock import stock

onnxruntime = stock()
__all__ = ["array_of", "element_of", "items_of", "ort_value", "speaks_dlpack", "speaks_numpy"]

Array = np.ndarray[Any, Any]
_BINDING = frozenset({
    "float", "double", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
    "string",
})  # fmt: skip
"""Element types of which onnxruntime's binding makes arrays."""
_DLPACK = _BINDING - {"bool", "string"} | {"bfloat16"}
"""Element types that onnxruntime hands on by DLPack, and torch takes."""
_BITS: dict[int, type[np.generic]] = {1: np.uint8, 2: np.uint16}
"""By bytes an element."""


def speaks_numpy(kind: str) -> bool:
    """Whether onnxruntime's binding makes arrays of results of a type, such as "tensor(float)"."""
    return not kind.startswith("tensor(") or kind[7:-1] in _BINDING


def speaks_dlpack(kind: str) -> bool:
    """Return whether torch takes values of a type, such as "tensor(float)", from onnxruntime in the same memory."""
    return kind.startswith("tensor(") and kind[7:-1] in _DLPACK


def ort_value(array: Array) -> Any:
    """Return a value on the CPU over an array's memory, or over a copy where a byte of it holds several numbers."""
    if array.dtype.isbuiltin != 2:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    import onnx_ir as ir

    dtype, bits = ir.DataType.from_numpy(array.dtype), _BITS[array.dtype.itemsize]
    if dtype.bitwidth >= 8:
        carrier = np.asarray(array, order="C").view(bits)
    else:
        # The shape counts numbers, so that the end stays empty.
        content = np.frombuffer(ir.Tensor(array, dtype=dtype).tobytes(), np.uint8)
        carrier = np.zeros(array.shape, np.uint8)
        carrier.reshape(-1)[: content.size] = content
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(carrier, int(dtype))


def array_of(value: Any) -> Array:
    """Return a value on the CPU as an array, one of `ml_dtypes` where numpy has no such dtype."""
    if not value.is_tensor() or speaks_numpy(value.data_type()):
        return np.asarray(value.numpy())
    import onnx
    import onnx_ir as ir

    dtype, shape = ir.DataType(value.element_type()), value.shape()
    content = ctypes.string_at(value.data_ptr(), (math.prod(shape) * dtype.bitwidth + 7) // 8)
    return onnx.numpy_helper.to_array(onnx.TensorProto(dims=shape, data_type=int(dtype), raw_data=content))


def element_of(kind: str) -> Any:
    """Return the element type, of `onnx_ir`, of a sequence's tensors by the sequence's type."""
    import onnx_ir as ir

    return ir.DataType[kind.removeprefix("seq(tensor(").removesuffix("))").upper()]


def items_of(value: Any) -> list[Array]:
    """Return the tensors of a value that is a sequence, as arrays.

    onnxruntime's binding makes arrays of a bound sequence only, and its process ends where they hold strings.

    Raises:
        InputError: it is another kind of value.
    """
    if not value.is_tensor_sequence():
        raise InputError(f"a {value.data_type()} is fed", way_out="feed a sequence of tensors")
    kind = value.data_type()
    (length,) = _reader("SequenceLength", kind).run_with_ort_values(["y"], {"items": value})
    items = list[Array]()
    for place in range(int(length.numpy())):
        at = onnxruntime.OrtValue.ortvalue_from_numpy(np.array(place))
        (item,) = _reader("SequenceAt", kind).run_with_ort_values(["y"], {"items": value, "at": at})
        items.append(array_of(item))
    return items


@lru_cache(32)
def _reader(op_type: str, kind: str) -> Any:
    """A session that reads from a sequence by an operator."""
    import onnx

    from ontrain.stock_node import open_model

    model = onnx.ModelProto(ir_version=8)
    model.opset_import.add(version=17)
    graph = model.graph
    graph.name = op_type
    node = graph.node.add(op_type=op_type, input=["items"], output=["y"])
    graph.input.add(name="items").type.sequence_type.elem_type.tensor_type.elem_type = int(element_of(kind))
    if op_type == "SequenceAt":
        node.input.append("at")
        graph.input.add(name="at").type.tensor_type.elem_type = onnx.TensorProto.INT64
    graph.output.add(name="y")
    return open_model(model.SerializeToString(), op_type)
