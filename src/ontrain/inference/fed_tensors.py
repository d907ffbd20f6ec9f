"""What users feed, as tensors of ontrain's providers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ontrain.capture import to_tensor
from ontrain.errors import InputError, OntrainError
from ontrain.inference.fed import NUMPY, listed
from ontrain.inference.stepwise.values import Items, Value
from ontrain.inference.upstream_errors import also, upstream
from ontrain.stock import stock
from ontrain.stock_values import array_of, items_of, speaks_dlpack

__all__ = ["fed_input", "fed_tensor"]

onnxruntime = stock()
_DTYPES = {f"tensor({name})": torch.from_numpy(np.empty(0, dtype)).dtype for name, dtype in NUMPY.items()}
"""torch's dtypes by onnxruntime's types."""


def fed_tensor(name: str, value: object, kind: str = "") -> torch.Tensor:
    """Return what is fed for an input as a tensor, in the same memory where that can be.

    Args:
        name: of the input.
        value: an array, a tensor, an `OrtValue`, whatever has `__dlpack__`; lists and numbers are taken for the
            input's type.
        kind: the input's type, such as "tensor(float)".

    Raises:
        InputError: it is no array, or of a dtype that torch does not have.
    """
    if type(value) is np.ndarray:
        return _of_array(name, value)
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_nested or value.is_meta:
            way_out = f"feed a dense {kind or 'tensor'}"
            raise also(
                InputError(f"what is fed for {name!r} is no dense tensor with numbers", way_out=way_out), RuntimeError
            )
        return value.detach()
    if value is None:  # numpy would make a number of it
        raise _nothing(name, kind, RuntimeError)
    try:
        if isinstance(value, onnxruntime.OrtValue):
            if value.is_sparse_tensor():
                raise also(
                    InputError(f"a sparse tensor is fed for {name!r}", way_out=f"feed a dense {kind or 'tensor'}"),
                    upstream("InvalidArgument"),
                )
            shares = speaks_dlpack(value.data_type()) and math.prod(value.shape())
            return torch.utils.dlpack.from_dlpack(value) if shares else to_tensor(array_of(value))
        if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
            return torch.utils.dlpack.from_dlpack(value)
        return _of_array(name, value if isinstance(value, np.ndarray) else listed(value, kind))
    except InputError:
        raise
    except (OverflowError, TypeError, ValueError) as error:
        raise also(
            InputError(f"what is fed for {name!r} is no array of the input's type", reason=str(error)), RuntimeError
        ) from error


def _nothing(name: str, kind: str, theirs: type[Exception]) -> OntrainError:
    return also(InputError(f"nothing is fed for {name!r}", way_out=f"feed a {kind or 'tensor'}"), theirs)


def _of_array(name: str, array: np.ndarray[Any, Any]) -> torch.Tensor:
    try:
        return to_tensor(array)
    except InputError as error:
        raise InputError(f"input {name!r}: {error.problem}", reason=error.reason, way_out=error.way_out) from error


def fed_input(name: str, value: Any, kind: str, device: torch.device) -> Value:
    """Return what is fed for an input of any type as a value of ontrain's providers; see `fed_tensor`.

    Raises:
        InputError: it is not of the input's type.
    """
    if value is None and not kind.startswith("optional("):
        raise _nothing(name, kind, upstream("Fail"))  # as onnxruntime does once a node asks for the value
    if kind in _DTYPES:
        tensor = fed_tensor(name, value, kind)
        return tensor if tensor.device == device else tensor.to(device)
    inner = kind.partition("(")[2][:-1]
    if kind.startswith("optional("):
        return None if value is None else _item(name, value, inner, device, upstream("InvalidArgument"))
    if kind.startswith("seq("):
        if isinstance(value, Items):
            return value
        value = items_of(value) if isinstance(value, onnxruntime.OrtValue) else value
        if not isinstance(value, list | tuple):
            error = InputError(f"what is fed for {name!r} is no list", way_out=f"the input is of type {kind}")
            raise also(error, RuntimeError)
        return Items(_item(f"{name}[{i}]", item, inner, device) for i, item in enumerate(value))
    if kind.startswith("map("):
        return _mapped(name, value, inner.partition(",")[2])
    if kind == "tensor(string)":
        return _texts(name, value)
    return fed_tensor(name, value, kind).to(device)


def _item(
    name: str, value: Any, kind: str, device: torch.device, theirs: type[Exception] = RuntimeError
) -> Value:  # fmt: skip
    """What a sequence or an optional value holds, whose element type nobody else checks."""
    item, dtype = fed_input(name, value, kind, device), _DTYPES.get(kind)
    if isinstance(item, torch.Tensor) and dtype is not None and item.dtype != dtype:
        raise also(InputError(f"what is fed for {name!r} is {item.dtype}", way_out=f"feed a {kind}"), theirs)
    return item


def _mapped(name: str, value: Any, kind: str) -> dict[Any, Any]:
    """A map whose numbers have the type that the file states."""
    if not isinstance(value, dict):
        error = InputError(f"what is fed for {name!r} is no dictionary", way_out=f"feed a map of {kind}")
        raise also(error, RuntimeError)
    if kind == "tensor(string)":
        return value
    numbers = listed([*value.values()], kind)
    return dict(zip(value, numbers, strict=True))


def _texts(name: str, value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, onnxruntime.OrtValue):
        value = array_of(value)
    array = np.asarray(value, object if isinstance(value, list | tuple) else None)
    if array.dtype.kind == "V":
        array = array.view(f"S{array.dtype.itemsize}")
    if array.dtype.kind not in "OSU" or any(isinstance(item, list | tuple) for item in array.flat):
        raise InputError(f"input {name!r} is of {array.dtype}, the model takes strings")
    try:
        return np.asarray(np.frompyfunc(_text, 1, 1)(array.astype(object)), object)
    except UnicodeDecodeError as error:
        raise InputError(
            f"input {name!r} holds bytes that are no text", reason=str(error), way_out="feed text in UTF-8"
        ) from error


def _text(item: object) -> str:
    """An item of an array of objects as a string; numbers and None are written out, as onnxruntime writes them."""
    return item.decode() if isinstance(item, bytes) else str(item)
