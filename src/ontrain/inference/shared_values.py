"""Results of ontrain's providers as `OrtValue`s that share their memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ontrain.capture import to_array
from ontrain.errors import InputError
from ontrain.inference.upstream_errors import also
from ontrain.stock import stock

__all__ = ["array_of", "memory_of", "numbers", "shared_value"]


def shared_value(tensor: torch.Tensor) -> Any:
    """Return an `OrtValue` over a tensor's memory, which lives as long as the value."""
    value, tensor = stock().OrtValue, tensor.detach().contiguous()
    if tensor.dtype != torch.bool:
        return value.from_dlpack(tensor)
    # onnxruntime knows DLPack's older way only: truth values are bytes, and the caller says what they mean.
    carrier = stock().capi.onnxruntime_pybind11_state.OrtValue
    return value(carrier.from_dlpack(tensor.view(torch.uint8).__dlpack__(), True))


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
    try:
        array: np.ndarray[Any, Any] = value.numpy()
        return array
    except RuntimeError:  # onnxruntime's, for types that numpy lacks
        return to_array(memory_of(value))


def numbers(result: Any) -> np.ndarray[Any, Any]:
    """Return a result that is no tensor as an array of numbers.

    Raises:
        InputError: it is a sequence, a map, or holds strings.
    """
    kind = {list: "a sequence", dict: "a map", type(None): "an empty optional value"}.get(type(result))
    array = np.asarray(None if kind else result)
    if kind is not None or array.dtype.kind in "OUS":
        raise InputError(
            f"a result is {kind or 'an array of strings'}",
            reason="ontrain's providers make OrtValues and tensors of numbers only",
            way_out="call run, or IOBinding.copy_outputs_to_cpu",
        )
    return array
