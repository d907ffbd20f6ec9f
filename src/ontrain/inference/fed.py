"""What users feed, as values of onnxruntime, and what onnxruntime gives back."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ontrain.errors import InputError
from ontrain.inference.upstream_errors import also
from ontrain.stock import stock
from ontrain.stock_values import array_of, ort_value

__all__ = ["NUMPY", "fed_value", "listed", "run_by_values"]

Array = np.ndarray[Any, Any]
onnxruntime = stock()
NUMPY = {"float": "float32", "double": "float64"} | {
    name: name for name in ["float16", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
}
"""numpy's dtypes by onnxruntime's element types."""


def fed_value(value: Any, kind: str = "") -> Any:
    """Return what onnxruntime is given for an input of a type such as "tensor(float)".

    Tensors become arrays, in sequences and maps too; arrays of `ml_dtypes` become `OrtValue`s; all that onnxruntime
    knows stays as it is.

    Raises:
        InputError: a tensor is sparse, quantised, nested or on the meta device.
    """
    if not isinstance(value, np.ndarray) and _is_tensor(value):
        value = _of_tensor(value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "S":
            # onnxruntime reads fixed-width bytes up to a zero, and so beyond an item that fills its width.
            return np.char.decode(value, "utf-8").astype(object)
        if not value.dtype.isnative:
            return value.astype(value.dtype.newbyteorder("="))  # onnxruntime reads the bytes in the machine's order
        return ort_value(value) if value.dtype.isbuiltin == 2 else value
    if isinstance(value, list) and any(_is_foreign(item) for item in value):
        return [fed_value(item) for item in value]
    if isinstance(value, dict) and any(_is_foreign(item) for item in value.values()):
        return {key: fed_value(item) for key, item in value.items()}
    # Numbers and tuples, which onnxruntime itself refuses.
    if kind.startswith("tensor(") and isinstance(value, np.generic | int | float | tuple):
        return listed(value, kind)
    if hasattr(value, "__dlpack__") and not isinstance(value, onnxruntime.OrtValue):
        return onnxruntime.OrtValue.from_dlpack(value)
    return value


def _of_tensor(value: Any) -> Array:
    from ontrain.capture import to_array

    try:
        return to_array(value)
    except (TypeError, RuntimeError) as error:
        raise also(
            InputError(
                "a tensor is fed that no array can be made of", reason=str(error),
                way_out="feed a dense one: to_dense(), dequantize(), to_padded_tensor()",
            ),
            RuntimeError,
        ) from error  # fmt: skip


def _is_foreign(value: object) -> bool:
    return _is_tensor(value) or (isinstance(value, np.ndarray) and value.dtype.isbuiltin == 2)


def _is_tensor(value: object) -> bool:
    """Whether it is a tensor of torch, which is not imported for the answer."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def listed(value: object, kind: str) -> Array:
    """Return lists, tuples and numbers as an array of an input's type, such as "tensor(float)"."""
    name = kind.removeprefix("tensor(").removesuffix(")")
    return np.asarray(value, object if name == "string" else NUMPY.get(name))


def run_by_values(session: Any, names: Sequence[str], feeds: Mapping[str, Any], options: Any) -> list[Array]:
    """Run a session some of whose results its binding cannot make arrays of.

    Raises:
        InputError: what is fed is no array.
    """
    binding = session.io_binding()
    for name, value in feeds.items():
        if isinstance(value, onnxruntime.OrtValue):
            binding.bind_ortvalue_input(name, value)
        elif isinstance(value, np.ndarray):
            binding.bind_cpu_input(name, value)
        else:
            raise InputError(
                f"{name!r} is a {type(value).__name__}, and a result is of a dtype that numpy does not have",
                reason="for such results onnxruntime takes arrays only",
                way_out="feed an array; for sequences and maps let a Cast in the file make the results float",
            )
    for name in names:
        binding.bind_output(name)
    session.run_with_iobinding(binding, options)
    return [array_of(value) for value in binding.get_outputs()]
