"""Strings: arrays of Python's in numpy."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.inference.stepwise.kernels.registry import Call, UnfitError, kernel
from ontrain.inference.stepwise.values import Value, as_array, as_value, is_text
from ontrain.stock_node import run_stock

__all__: list[str] = []


@kernel("StringConcat", text=True)
def _concat(call: Call) -> list[Value]:
    return [np.asarray(np.add(call.inputs[0], call.inputs[1]), object)]


@kernel("RegexFullMatch", text=True)
def _full_match(call: Call) -> list[Value]:
    pattern = call.attributes["pattern"]
    matched = run_stock("RegexFullMatch", [call.inputs[0]], pattern=pattern)
    return [torch.from_numpy(matched).to(call.device)]


@kernel("StringSplit", text=True)
def _split(call: Call) -> list[Value]:
    """Parts, filled up with empty strings, and how many there are of each."""
    texts, most = call.inputs[0], call.attributes.get("maxsplit", -1)
    delimiter = call.attributes.get("delimiter") or None
    parts = [_parts(text, delimiter, -1 if most is None else most) for text in texts.reshape(-1)]
    width = max(map(len, parts), default=0)
    filled = np.full((len(parts), width), "", object)
    for row, words in enumerate(parts):
        filled[row, : len(words)] = words
    counts = torch.tensor([len(words) for words in parts], dtype=torch.int64, device=call.device)
    return [filled.reshape(*texts.shape, width), counts.reshape(texts.shape)]


def _parts(text: str, delimiter: str | None, most: int) -> list[str]:
    if delimiter is None:
        parts = text.split(maxsplit=most)
        return [*parts[:-1], parts[-1].rstrip()] if parts else parts
    return text.split(delimiter, most) if text else []


@kernel("StringNormalizer", text=True)
def _normalize(call: Call) -> list[Value]:
    texts, change = call.inputs[0], call.attributes.get("case_change_action", "NONE")
    stopwords, exact = call.attributes.get("stopwords") or [], call.attributes.get("is_case_sensitive", 0)
    dropped = set(stopwords) if exact else {word.lower() for word in stopwords}
    changed = {"LOWER": str.lower, "UPPER": str.upper}.get(change, str)
    left = [changed(text) for text in texts.reshape(-1) if (text if exact else text.lower()) not in dropped] or [""]
    return [np.array(left, object).reshape(*texts.shape[:-1], len(left))]


@kernel("Cast", text=True, always=False)
def _cast(call: Call) -> list[Value]:
    x, to = call.inputs[0], ir.DataType(call.attributes["to"])
    if to == ir.DataType.STRING:
        return [x if is_text(x) else _written(as_array(x))]
    if not is_text(x):
        raise UnfitError
    kind = to.numpy()
    numbers: Any = np.array([_read(text, integer=kind.kind in "iu") for text in x.reshape(-1)])
    return [as_value(numbers.astype(kind).reshape(x.shape), call.device)]


def _read(text: str, *, integer: bool) -> int | float:
    return int(text) if integer else float(text)


def _written(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers as onnxruntime writes them."""
    write = functools.partial(_text, digits=17 if array.dtype == np.float64 else 8)
    return np.array([write(number) for number in array.reshape(-1).tolist()], object).reshape(array.shape)


def _text(number: float, *, digits: int) -> str:
    if isinstance(number, bool):
        return str(int(number))
    if not isinstance(number, float):
        return str(number)
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "INF" if number > 0 else "-INF"
    return f"{number:.{digits}g}"
