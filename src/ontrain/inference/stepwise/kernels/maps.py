"""Maps: dictionaries of Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from ontrain.functions import attributes_of
from ontrain.inference.stepwise.kernels.registry import Call, kernel
from ontrain.inference.stepwise.values import Value, as_value
from ontrain.operators import ML

__all__: list[str] = []

_CASTS: dict[str, tuple[Any, Any]] = {
    "TO_FLOAT": (float, np.float32),
    "TO_INT64": (int, np.int64),
    "TO_STRING": (str, object),
}


@kernel("ZipMap", domain=ML)
def _zip_map(call: Call) -> list[Value]:
    """A map from labels to numbers for each row."""
    a, x = attributes_of(call.node, {}), call.inputs[0]
    labels = list(a.get("classlabels_strings") or a.get("classlabels_int64s") or ())
    rows = x.reshape(-1, x.shape[-1])
    if rows.shape[1] != len(labels):
        raise ValueError(f"{len(labels)} labels for {rows.shape[1]} columns")
    return [[dict(zip(labels, row, strict=True)) for row in rows.tolist()]]


@kernel("DictVectorizer", domain=ML)
def _dict_vectorizer(call: Call) -> list[Value]:
    """The values of the keys of a vocabulary in a row, zero or empty where a key is missing."""
    a, mapped = attributes_of(call.node, {}), call.inputs[0]
    vocabulary = list(a.get("string_vocabulary") or a.get("int64_vocabulary") or ())
    text = any(isinstance(value, str) for value in mapped.values())
    row = [mapped.get(key, "" if text else 0) for key in vocabulary]
    kind = object if text else np.result_type(*mapped.values()) if mapped else np.float32
    return [as_value(np.array([row], kind), call.device)]


@kernel("CastMap", domain=ML)
def _cast_map(call: Call) -> list[Value]:
    """The values of a map in a row: in the order of the keys, which are whole numbers, or each at its key's place."""
    a = attributes_of(call.node, {"cast_to": "TO_FLOAT", "map_form": "DENSE", "max_map": 1})
    read, dtype = _CASTS[a["cast_to"]]
    mapped = call.inputs[0]
    if a["map_form"] == "DENSE":
        values = [read(mapped[key]) for key in sorted(mapped)]
    else:
        values = [read(0) if read is not str else ""] * a["max_map"]
        for key, value in mapped.items():
            if not 0 <= key < len(values):
                raise ValueError(f"key {key} is not below max_map, {len(values)}")
            values[key] = read(value)
    return [as_value(np.array([values], dtype), call.device)]
