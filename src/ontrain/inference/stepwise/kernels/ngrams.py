"""Text in tokens, and tokens in counts.

Source: https://onnx.ai/onnx/operators/onnx__TfIdfVectorizer.html; onnxruntime, docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ontrain.functions import attributes_of
from ontrain.inference.stepwise.kernels.registry import Call, kernel
from ontrain.inference.stepwise.values import Value, as_array, as_value
from ontrain.stock_node import run_stock

__all__: list[str] = []

_START, _END = "\x02", "\x03"
"""What onnxruntime's Tokenizer puts around the tokens of a text if it is to mark them."""


@kernel("MurmurHash3", domain="com.microsoft", text=True)
def _murmur_hash(call: Call) -> list[Value]:
    """A hash of each text or number in 32 bits, with a sign or without."""
    a = attributes_of(call.node, {"positive": 1, "seed": 0})
    return [as_value(run_stock("MurmurHash3", [as_array(call.inputs[0])], domain="com.microsoft", **a), call.device)]


@kernel("Tokenizer", domain="com.microsoft", text=True)
def _tokenizer(call: Call) -> list[Value]:
    """The tokens of each text along a new last axis, filled up with a value."""
    a = attributes_of(call.node, {"mark": 0, "mincharnum": 1, "pad_value": "#"})
    texts = call.inputs[0]
    if a.get("tokenexp") or any(a.get("separators", ())):
        split = run_stock("Tokenizer", [texts.reshape(-1)], domain="com.microsoft", **a)
        return [split.reshape(*texts.shape, split.shape[-1])]
    rows = [[token for token in text if len(token) >= a["mincharnum"]] for text in texts.reshape(-1).tolist()]
    if a["mark"]:
        rows = [[_START, *row, _END] for row in rows]
    width = max(map(len, rows), default=0)
    tokens = np.full((len(rows), width), a["pad_value"], object)
    for place, row in zip(tokens, rows, strict=True):
        place[: len(row)] = row
    return [tokens.reshape(*texts.shape, width)]


@kernel("TfIdfVectorizer", text=True, always=lambda node: "pool_strings" in node.attributes)
def _tf_idf(call: Call) -> list[Value]:
    """How often each n-gram of a pool stands in each row, or whether it does, weighted."""
    a = attributes_of(call.node, {})
    x = as_array(call.inputs[0])
    places, longest, shortest = _pool(a), a["max_gram_length"], a["min_gram_length"]
    rows: Any = np.atleast_2d(x).tolist() if x.ndim else [[x.item()]]
    columns = a["ngram_indexes"]
    counts = np.zeros((len(rows), max(columns) + 1), np.float32)
    lengths = {len(gram) for gram in places if shortest <= len(gram) <= longest}
    for count, row in zip(counts, rows, strict=True):
        for gram in _grams(row, sorted(lengths), a["max_skip_count"]):
            place = places.get(gram)
            if place is not None:
                count[columns[place]] += 1
    weights = np.ones(counts.shape[1], np.float32)
    if a.get("weights"):
        weights[list(columns)] = a["weights"]
    scores = {"TF": counts, "IDF": (counts > 0) * weights, "TFIDF": counts * weights}[a["mode"]]
    shape = (*x.shape[:-1], counts.shape[1]) if x.ndim > 1 else (counts.shape[1],)
    return [as_value(scores.astype(np.float32).reshape(shape), call.device)]


def _pool(a: dict[str, Any]) -> dict[tuple[Any, ...], int]:
    """The place of each n-gram among all; `ngram_counts` says where those of each length begin."""
    pool: Sequence[Any] = a.get("pool_strings") or a.get("pool_int64s") or ()
    bounds = [*a["ngram_counts"], len(pool)]
    places: dict[tuple[Any, ...], int] = {}
    for length, (start, end) in enumerate(zip(bounds, bounds[1:], strict=False), start=1):
        for at in range(start, end, length):
            places.setdefault(tuple(pool[at : at + length]), len(places))
    return places


def _grams(row: Sequence[Any], lengths: Sequence[int], most: int) -> Iterator[tuple[Any, ...]]:
    """The n-grams of a row whose items stand up to `most` others apart."""
    for length in lengths:
        for step in range(1, 2 if length == 1 else most + 2):
            for start in range(len(row) - (length - 1) * step):
                yield tuple(row[start : start + (length - 1) * step + 1 : step])
