"""Results of ontrain's providers as `OrtValue`s that share their memory where onnxruntime lets them.

Strings, sequences and maps are copied. onnxruntime's binding makes no value of them, but its kernels do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture import to_array
from ontrain.errors import InputError
from ontrain.inference.upstream_errors import also
from ontrain.stock import stock
from ontrain.stock_node import open_node
from ontrain.stock_values import array_of as stock_array_of, element_of

__all__ = [
    "array_of",
    "copied_value",
    "listed_value",
    "memory_of",
    "numbers",
    "read_in_place",
    "shared_value",
    "text_value",
    "written",
]


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


def text_value(texts: np.ndarray[Any, Any]) -> Any:
    """Return an `OrtValue` with a copy of strings, which no call of onnxruntime's makes: they are a weight."""
    return _made(open_node("Identity", (texts.astype(object),), 1, {}), {})


def listed_value(values: Sequence[Any], kind: str) -> Any:
    """Return an `OrtValue` of a sequence.

    Args:
        values: `OrtValue`s of tensors of one type, or maps with the same keys from whole numbers or strings to reals.
        kind: the sequence's type, such as "seq(tensor(float))", which says of what it is where it is empty.

    Raises:
        InputError: the maps differ in their keys, or hold other numbers.
    """
    if kind.startswith("seq(map(") or any(isinstance(value, dict) for value in values):
        return _zipped(values, kind)
    if not values:
        return _made(_opened("SequenceEmpty", (), "", (("dtype", int(element_of(kind))),)), {})
    types = tuple(ir.DataType(value.element_type()) for value in values)
    return _made(_opened("SequenceConstruct", types, "", ()), {f"i{at}": value for at, value in enumerate(values)})


def _zipped(maps: Sequence[dict[Any, Any]], kind: str) -> Any:
    """A sequence of maps, as the operator ZipMap makes it."""
    keys = [*maps[0]] if maps else ["" if kind.startswith("seq(map(string") else 0]
    rows = np.array([[*entry.values()] for entry in maps], np.float32).reshape(len(maps), len(keys))
    by_text = all(isinstance(key, str) for key in keys)
    if any([*entry] != keys for entry in maps) or not (by_text or all(isinstance(key, int) for key in keys)):
        raise also(
            InputError(
                "a result is a sequence of maps that differ in their keys", way_out="call run, or copy_outputs_to_cpu"
            ),
            RuntimeError,
        )
    labels = ("classlabels_strings" if by_text else "classlabels_int64s", tuple(keys))
    session = _opened("ZipMap", (ir.DataType.FLOAT,), "ai.onnx.ml", (labels,))
    return _made(session, {"i0": stock().OrtValue.ortvalue_from_numpy(rows)})


def _made(session: Any, feeds: dict[str, Any]) -> Any:
    (value,) = session.run_with_ort_values(["o0"], feeds)
    return value


@lru_cache(32)
def _opened(
    op_type: str, types: tuple[ir.DataType, ...], domain: str, attributes: tuple[tuple[str, Any], ...]
) -> Any:  # fmt: skip
    return open_node(op_type, types, 1, dict(attributes), domain)


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


def read_in_place(feeds: Any) -> dict[str, np.ndarray[Any, Any]] | None:
    """Return arrays over the memory of tensors and `OrtValue`s; None where numpy sees no memory of something fed."""
    try:
        return {name: _seen(value) for name, value in feeds.items()}
    except (InputError, AttributeError, RuntimeError, TypeError):  # whoever takes the value says what is wrong
        return None


def _seen(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return value
    tensor = value if isinstance(value, torch.Tensor) else memory_of(value)
    return (tensor.detach() if tensor.requires_grad else tensor).numpy()


def written(array: Any) -> Any:
    """Return an array of numbers as a tensor over its memory, and other results as they are."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) and array.dtype.kind in "biuf" else array


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
            reason="only tensors of numbers become tensors of PyTorch and memory that is shared",
            way_out="call run, or IOBinding.copy_outputs_to_cpu",
        )
        raise also(error, RuntimeError)  # as onnxruntime's, where such a value is asked for its numbers
    return array
