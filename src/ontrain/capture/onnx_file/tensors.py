"""The data of a stored tensor against its stated type and shape."""

from __future__ import annotations

import math

import onnx
import onnx_ir as ir

from ontrain.errors import GraphError

__all__ = ["check_tensor", "raw_size"]

_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_IN = {
    ir.DataType.FLOAT: "float_data",
    ir.DataType.COMPLEX64: "float_data",
    ir.DataType.INT64: "int64_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.COMPLEX128: "double_data",
    ir.DataType.UINT32: "uint64_data",
    ir.DataType.UINT64: "uint64_data",
    ir.DataType.STRING: "string_data",
}
"""The field that holds a type's values where they are not raw; all others are in int32_data."""
_MAX_RANK = 64  # numpy's


def check_tensor(tensor: onnx.TensorProto, where: str) -> None:
    """Check that a tensor holds as much data as its shape says, so that nothing is allocated on its word alone.

    Raises:
        GraphError: an unknown type, a negative dimension, or data of another size.
    """
    what = f"tensor {tensor.name!r} {where}"
    dtype = _dtype(tensor, what)
    count = _count(tensor, what)
    if tensor.HasField("segment"):
        raise GraphError(f"{what} is stored in segments", reason="no runtime reads these")
    if tensor.HasField("raw_data"):
        have, want, unit = len(tensor.raw_data), raw_size(tensor, what), "bytes"
    else:
        field = _IN.get(dtype, "int32_data")
        filled = [name for name in _FIELDS if len(getattr(tensor, name)) and name != field]
        if filled:
            raise GraphError(f"{what} has its values in {filled[0]}", reason=f"those of {dtype.name} are in {field}")
        packed = 8 // dtype.bitwidth if dtype != ir.DataType.STRING and dtype.bitwidth < 8 else 1
        doubled = 2 if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128) else 1
        have, want, unit = len(getattr(tensor, field)), -(-count * doubled // packed), "values"
    if have != want:
        raise GraphError(
            f"{what} has {have} {unit}, its shape {list(tensor.dims)} of {dtype.name} needs {want}",
            way_out="export the model again, or copy the whole file",
        )


def raw_size(tensor: onnx.TensorProto, what: str) -> int:
    """Return the bytes that a tensor's raw data must have.

    Raises:
        GraphError: a type that has no raw form, or a negative dimension.
    """
    dtype = _dtype(tensor, what)
    if dtype == ir.DataType.STRING:
        raise GraphError(f"{what} has strings as raw data", reason="they belong in string_data")
    return -(-_count(tensor, what) * dtype.bitwidth // 8)


def _dtype(tensor: onnx.TensorProto, what: str) -> ir.DataType:
    try:
        dtype = ir.DataType(tensor.data_type)
    except ValueError as error:
        raise GraphError(f"{what} has the unknown data type {tensor.data_type}") from error
    if dtype == ir.DataType.UNDEFINED:
        raise GraphError(f"{what} has no data type")
    return dtype


def _count(tensor: onnx.TensorProto, what: str) -> int:
    if len(tensor.dims) > _MAX_RANK:
        raise GraphError(f"{what} has {len(tensor.dims)} dimensions", reason="no runtime knows so many")
    if any(d < 0 for d in tensor.dims):
        raise GraphError(f"{what} has the shape {list(tensor.dims)}", reason="a dimension is negative")
    return math.prod(tensor.dims)
