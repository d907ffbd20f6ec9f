"""The data of a stored tensor against its stated type and shape."""

from __future__ import annotations

import math
import re
from functools import cache

import onnx
from onnx import numpy_helper

from ontrain.errors import GraphError
from ontrain.files.left import left_data

__all__ = ["check_tensor", "raw_size"]

_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_KIND = onnx.TensorProto
_IN: dict[int, str] = {
    _KIND.FLOAT: "float_data",
    _KIND.COMPLEX64: "float_data",
    _KIND.INT64: "int64_data",
    _KIND.DOUBLE: "double_data",
    _KIND.COMPLEX128: "double_data",
    _KIND.UINT32: "uint64_data",
    _KIND.UINT64: "uint64_data",
    _KIND.STRING: "string_data",
}
"""The field that holds a type's values where they are not raw; all others are in int32_data."""
_KINDS = frozenset(_KIND.DataType.values())
_MAX_RANK = 64  # numpy's


def check_tensor(tensor: onnx.TensorProto, where: str) -> None:
    """Check that a tensor holds as much data as its shape says, so that nothing is allocated on its word alone.

    Raises:
        GraphError: an unknown type, a negative dimension, or data of another size.
    """
    what = f"tensor {tensor.name!r} {where}"
    kind = _kind(tensor, what)
    count = _count(tensor, what)
    if tensor.HasField("segment"):
        raise GraphError(f"{what} is stored in segments", reason="no runtime reads these")
    if left_data(tensor) is not None:
        return
    if tensor.HasField("raw_data"):
        have, want, unit = len(tensor.raw_data), raw_size(tensor, what), "bytes"
    else:
        field = _IN.get(kind, "int32_data")
        filled = [name for name in _FIELDS if len(getattr(tensor, name)) and name != field]
        if filled:
            raise GraphError(f"{what} has its values in {filled[0]}", reason=f"those of {_name(kind)} are in {field}")
        packed = 8 // _bits(kind) if kind != _KIND.STRING and _bits(kind) < 8 else 1
        doubled = 2 if kind in (_KIND.COMPLEX64, _KIND.COMPLEX128) else 1
        have, want, unit = len(getattr(tensor, field)), -(-count * doubled // packed), "values"
    if have != want:
        raise GraphError(
            f"{what} has {have} {unit}, its shape {list(tensor.dims)} of {_name(kind)} needs {want}",
            way_out="export the model again, or copy the whole file",
        )


def raw_size(tensor: onnx.TensorProto, what: str) -> int:
    """Return the bytes that a tensor's raw data must have.

    Raises:
        GraphError: a type that has no raw form, or a negative dimension.
    """
    kind = _kind(tensor, what)
    if kind == _KIND.STRING:
        raise GraphError(f"{what} has strings as raw data", reason="they belong in string_data")
    return -(-_count(tensor, what) * _bits(kind) // 8)


def _kind(tensor: onnx.TensorProto, what: str) -> int:
    kind = int(tensor.data_type)
    if kind not in _KINDS:
        raise GraphError(f"{what} has the unknown data type {kind}")
    if kind == _KIND.UNDEFINED:
        raise GraphError(f"{what} has no data type")
    return kind


def _name(kind: int) -> str:
    return str(_KIND.DataType.Name(kind))


@cache
def _bits(kind: int) -> int:
    """Bits of an element."""
    dtype = numpy_helper.to_array(onnx.TensorProto(data_type=kind, dims=[0])).dtype
    # The dtypes that numpy itself lacks are called after their bits, such as float4_e2m1fn.
    named = None if dtype.isbuiltin == 1 else re.search(r"\d+", dtype.name)
    return 8 * dtype.itemsize if named is None else int(named[0])


def _count(tensor: onnx.TensorProto, what: str) -> int:
    if len(tensor.dims) > _MAX_RANK:
        raise GraphError(f"{what} has {len(tensor.dims)} dimensions", reason="no runtime knows so many")
    if any(d < 0 for d in tensor.dims):
        raise GraphError(f"{what} has the shape {list(tensor.dims)}", reason="a dimension is negative")
    return math.prod(tensor.dims)
