"""The table of a LabelEncoder, whichever of its attributes say it.

Source: https://onnx.ai/onnx/operators/onnx_aionnxml_LabelEncoder.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.functions.registry import attributes_of
from ontrain.graph import describe

__all__ = ["LabelTable", "table_of"]

Array = np.ndarray[Any, Any]
_TYPES: dict[str, Any] = {"int64s": np.int64, "floats": np.float32, "strings": object}
_DEFAULTS: dict[str, tuple[str, Any]] = {
    "int64s": ("default_int64", -1), "floats": ("default_float", -0.0), "strings": ("default_string", "_Unused"),
}  # fmt: skip


@dataclass(frozen=True)
class LabelTable:
    """Keys, the value of each, and what every other key has; arrays of strings have the dtype object."""

    keys: Array
    values: Array
    default: Any


def table_of(node: ir.Node, *, of_strings: bool | None = None) -> LabelTable:
    """Return the table of a LabelEncoder.

    Args:
        node: the LabelEncoder.
        of_strings: whether its input is; None for what the type of its input says.

    Raises:
        GraphError: there are not as many values as keys, or there are none.
    """
    a = attributes_of(node, {})
    if "classes_strings" in a:
        x = node.inputs[0]
        typed = x is not None and x.dtype == ir.DataType.STRING
        return _of_classes(a, typed if of_strings is None else of_strings)
    keys, _ = _stated(node, a, "keys")
    values, kind = _stated(node, a, "values")
    if len(keys) != len(values):
        raise GraphError(f"{len(keys)} keys have {len(values)} values", node=describe(node))
    tensor = a.get("default_tensor")
    if tensor is not None:
        default = _array(tensor).reshape(-1)[0]
    else:
        name, usual = _DEFAULTS.get(kind) or _DEFAULTS[_kind(values)]
        default = a.get(name, usual)
    return LabelTable(keys, values, np.asarray(default, values.dtype)[()])


def _of_classes(a: dict[str, Any], of_strings: bool) -> LabelTable:
    """The first version's table: strings and their places, either way."""
    classes = np.asarray(a["classes_strings"], object)
    if of_strings:
        return LabelTable(classes, np.arange(len(classes)), a.get("default_int64", -1))
    return LabelTable(np.arange(len(classes)), classes, a.get("default_string", "_Unused"))


def _stated(node: ir.Node, a: dict[str, Any], what: str) -> tuple[Array, str]:
    tensor = a.get(f"{what}_tensor")
    if tensor is not None:
        return _array(tensor).reshape(-1), "tensor"
    for kind, dtype in _TYPES.items():
        if f"{what}_{kind}" in a:
            return np.asarray(a[f"{what}_{kind}"], dtype), kind
    raise GraphError(f"{node.op_type} has no {what}", node=describe(node))


def _array(tensor: ir.TensorProtocol) -> Array:
    if tensor.dtype == ir.DataType.STRING:
        texts = [text.decode() if isinstance(text, bytes) else text for text in tensor.numpy().reshape(-1)]
        return np.asarray(texts, object)
    return np.asarray(tensor.numpy())


def _kind(values: Array) -> str:
    return {"O": "strings", "f": "floats"}.get(values.dtype.kind, "int64s")
