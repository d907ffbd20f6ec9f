"""Results of ontrain's providers as `OrtValue`s that share their memory where onnxruntime lets them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture import to_array
from ontrain.errors import InputError
from ontrain.inference.upstream_errors import also
from ontrain.stock import stock
from ontrain.stock_values import array_of as stock_array_of

__all__ = ["array_of", "copied_value", "memory_of", "numbers", "shared_value"]


def shared_value(tensor: torch.Tensor) -> Any:
    """Return an `OrtValue` over a tensor's memory, which lives as long as the value; of 8-bit floats over a copy."""
    value, tensor = stock().OrtValue, tensor.detach().contiguous()
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1:
        return copied_value(to_array(tensor))
    if tensor.dtype != torch.bool:
        return value.from_dlpack(tensor)
    # onnxruntime knows DLPack's older way only: truth values are bytes, and the caller says what they mean.
    carrier = stock().capi.onnxruntime_pybind11_state.OrtValue
    return value(carrier.from_dlpack(tensor.view(torch.uint8).__dlpack__(), True))


def copied_value(array: np.ndarray[Any, Any]) -> Any:
    """Return an `OrtValue` on the CPU with a copy of numbers of a dtype that onnxruntime's DLPack lacks."""
    dtype = ir.DataType.from_numpy(array.dtype)
    content = ir.Tensor(array, dtype=dtype).tobytes()
    value = stock().OrtValue.ortvalue_from_shape_and_type(array.shape, int(dtype), "cpu", 0)
    ctypes.memmove(value.data_ptr(), content, len(content))
    return value


def memory_of(value: Any) -> torch.Tensor:
    """Return a tensor over the memory of an `OrtValue`, which writes to one also write to the other.

    Raises:
        InputError: it is no `OrtValue` of numbers.
    """
    try:
        tensor = torch.utils.dlpack.from_dlpack(value)
        return tensor.view(torch.bool) if value.data_type() == "tensor(bool)" else tensor
    except Exception as error:  # of torch and of onnxruntime, by what the value is
        reason = InputError(f"a {type(value).__name__} is bound", reason=str(error), way_out="bind an OrtValue")
        raise also(reason, AttributeError) from error


def array_of(value: Any) -> np.ndarray[Any, Any]:
    """Return what an `OrtValue` holds, of one of ml_dtypes' dtypes where numpy has none.

    Raises:
        InputError: neither numpy nor torch has its type.
    """
    return to_array(memory_of(value)) if value.data_type() == "tensor(bfloat16)" else stock_array_of(value)


def numbers(result: Any) -> np.ndarray[Any, Any]:
    """Return a result that is no tensor as an array of numbers.

    Raises:
        InputError: it is a sequence, a map, or holds strings.
    """
    kind = {list: "a sequence", dict: "a map", type(None): "an empty optional value"}.get(type(result))
    array = np.asarray(None if kind else result)
    if kind is not None or array.dtype.kind in "OUS":
        error = InputError(
            f"a result is {kind or 'an array of strings'}",
            reason="ontrain's providers make OrtValues and tensors of numbers only",
            way_out="call run, or IOBinding.copy_outputs_to_cpu",
        )
        raise also(error, RuntimeError)  # as onnxruntime's, where such a value is asked for its numbers
    return array
