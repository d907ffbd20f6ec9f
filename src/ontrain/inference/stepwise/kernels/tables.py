"""Tables whose keys or values are strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.functions import attributes_of, table_of
from ontrain.inference.stepwise.kernels.registry import Call, UnfitError, kernel
from ontrain.inference.stepwise.values import Value, as_array, as_value, is_text
from ontrain.operators import ML

__all__: list[str] = []


def _has_strings(node: ir.Node) -> bool:
    """Whether an attribute of a node holds strings."""
    return any(
        attr.type == ir.AttributeType.STRINGS
        or (attr.type == ir.AttributeType.TENSOR and attr.as_tensor().dtype == ir.DataType.STRING)
        for attr in node.attributes.values()
    )


def _looked_up(call: Call, look: Callable[[Any], Any], dtype: Any) -> Value:
    x = as_array(call.inputs[0])
    values = np.empty(x.size, dtype)
    values[:] = [look(key) for key in x.reshape(-1).tolist()]
    return as_value(values.reshape(x.shape), call.device)


def _table(keys: Sequence[Any], values: Sequence[Any]) -> dict[Any, Any]:
    """Of a key that is there twice the first value."""
    return dict(zip(reversed(keys), reversed(values), strict=True))


@kernel("LabelEncoder", domain=ML, text=True, always=_has_strings)
def _label_encoder(call: Call) -> list[Value]:
    stated = table_of(call.node, of_strings=is_text(call.inputs[0]))
    table, default = _table(stated.keys.tolist(), stated.values.tolist()), stated.default
    nan = next((value for key, value in table.items() if key != key), default)
    return [_looked_up(call, lambda key: table.get(key, default if key == key else nan), stated.values.dtype)]


@kernel("CategoryMapper", domain=ML, text=True)
def _category_mapper(call: Call) -> list[Value]:
    a = attributes_of(call.node, {"default_int64": -1, "default_string": "_Unused"})
    numbers, names = a["cats_int64s"], a["cats_strings"]
    if is_text(call.inputs[0]):
        table: dict[Any, Any] = _table(names, numbers)
        return [_looked_up(call, lambda key: table.get(key, a["default_int64"]), np.int64)]
    table = _table(numbers, names)
    return [_looked_up(call, lambda key: table.get(key, a["default_string"]), object)]


@kernel("OneHotEncoder", domain=ML, text=True, always=_has_strings)
def _one_hot_encoder(call: Call) -> list[Value]:
    if not is_text(call.inputs[0]):
        raise UnfitError
    a = attributes_of(call.node, {"zeros": 1})
    places = {name: place for place, name in reversed(list(enumerate(a["cats_strings"])))}
    at = _looked_up(call, lambda name: places.get(name, -1), np.int64)
    if not a["zeros"] and bool((at < 0).any()):
        raise ValueError("a category is not listed, and the attribute zeros is 0")
    return [(at.unsqueeze(-1) == torch.arange(len(places), device=at.device)).float()]


def _reads_strings(node: ir.Node) -> bool:
    return any(value is not None and value.dtype == ir.DataType.STRING for value in node.inputs)


@kernel("ArrayFeatureExtractor", domain=ML, text=True, always=_reads_strings)
def _array_feature_extractor(call: Call) -> list[Value]:
    x, places = call.inputs[0], call.numbers(1)
    if not is_text(x):
        raise UnfitError
    rows = np.atleast_2d(x)
    if not all(0 <= place < rows.shape[-1] for place in places or ()):
        raise ValueError(f"the places {places} are not in [0, {rows.shape[-1]})")
    return [np.take(rows, places or [], axis=-1)]
