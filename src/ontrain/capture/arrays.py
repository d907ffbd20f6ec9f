"""Arrays of numpy as tensors of torch and back, of the dtypes too that numpy knows by `ml_dtypes` only."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor, to_torch_dtype

from ontrain.errors import InputError
from ontrain.operators import HALVES

__all__ = ["HALF_DTYPES", "NARROW", "tensor_dtype", "to_array", "to_tensor"]

Array = np.ndarray[Any, Any]
_BITS: dict[int, type[np.generic]] = {1: np.uint8, 2: np.int16}
"""By bytes an element: what numpy and torch both know."""
_CARRIERS = {
    dtype: carrier
    for carrier, names in {
        torch.int8: ("INT4", "INT2"), torch.uint8: ("UINT4", "UINT2"),
        torch.float8_e4m3fn: ("FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2"),
    }.items()
    for dtype in map(ir.DataType.__members__.get, names) if dtype is not None
}  # fmt: skip
"""Dtypes of tensors that hold numbers of fewer than eight bits, each number in a byte of its own.

onnx-ir has the two types of six bits from 1.1 on.
"""
_NUMPYS = frozenset({
    torch.float32, torch.float64, torch.float16, torch.bool, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
})  # fmt: skip
"""Dtypes that numpy has, too."""
HALF_DTYPES = tuple(map(to_torch_dtype, HALVES))
"""Those of half precision."""
NARROW = frozenset(_CARRIERS)
"""ONNX types of fewer than eight bits."""


def tensor_dtype(dtype: ir.DataType) -> torch.dtype:
    """Return the dtype of tensors that hold an ONNX type: its own, or for one of a few bits a wider one.

    Raises:
        TypeError: there are no such tensors.
    """
    return _CARRIERS.get(dtype) or to_torch_dtype(dtype)


def to_array(tensor: torch.Tensor, dtype: ir.DataType | None = None) -> Array:
    """Return a tensor's numbers as an array, on a CPU in the same memory; of bfloat16 the array is `ml_dtypes`'.

    Args:
        tensor: on any device.
        dtype: the ONNX type that it holds, where this is not its own.
    """
    if dtype is None and tensor.is_cpu and tensor.dtype in _NUMPYS and not tensor.is_neg():
        return tensor.detach().numpy()
    array = TorchTensor(tensor.detach().cpu().resolve_conj().resolve_neg()).numpy()
    if dtype not in _CARRIERS:
        return array
    assert dtype is not None
    return array.astype(np.float32).astype(dtype.numpy())


_ARRAYS = frozenset(torch.empty(0, dtype=dtype, device="cpu").numpy().dtype for dtype in _NUMPYS)
"""numpy's dtypes for those, in the machine's byte order."""


class _Unlocked:
    """The memory of an array that may not be written to; torch knows no such tensors, and would warn of it.

    What is fed is only read.
    """

    def __init__(self, array: Array) -> None:
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}
        self._array = array


def _unlocked(array: Array) -> Array:
    return array if array.flags.writeable or array.dtype.kind in "OSUV" else np.asarray(_Unlocked(array))


def to_tensor(array: Array) -> torch.Tensor:
    """Return an array's numbers as a tensor on the CPU, where possible in the same memory.

    Raises:
        InputError: torch has no such dtype: strings, objects.
    """
    if array.dtype in _ARRAYS and array.flags.c_contiguous and array.flags.writeable:
        return torch.from_numpy(array)
    # In order, because torch knows no negative strides.
    plain = np.asarray(array, None if array.dtype.isnative else array.dtype.newbyteorder("="), order="C")
    try:
        if plain.dtype.type.__module__ == "numpy":
            return torch.as_tensor(_unlocked(plain), device="cpu")
        kind = ir.DataType.from_numpy(plain.dtype)
        dtype = tensor_dtype(kind)
        if kind in _CARRIERS:
            return torch.as_tensor(plain.astype(np.float32), device="cpu").to(dtype)
        return torch.as_tensor(_unlocked(plain.view(_BITS[dtype.itemsize])), device="cpu").view(dtype)
    except TypeError as error:
        raise InputError(
            f"there are no tensors of {array.dtype}",
            reason="torch has no such dtype",
            way_out="feed another dtype, which a Cast in the file converts, or use CPUExecutionProvider",
        ) from error
