"""Strings."""

from __future__ import annotations

from itertools import pairwise

import onnx_ir as ir

from ontrain.operators.record import Outrun, Smallest, Stock, attribute_of, define

__all__: list[str] = []

STRINGS = "it works on strings"


def _ngrams(node: ir.Node) -> str:
    """What would let a reader of the pool count for ever, or read beyond it."""
    pool = attribute_of(node, "pool_strings") or attribute_of(node, "pool_int64s") or ()
    begins, columns = attribute_of(node, "ngram_counts"), attribute_of(node, "ngram_indexes")
    bounds = [0, *begins, len(pool)]
    grams = 0
    for length, (start, end) in enumerate(pairwise(bounds[1:]), start=1):
        if not 0 <= start <= end <= len(pool) or (end - start) % length:
            return f"its n-grams begin at {list(begins)} of a pool of {len(pool)}"
        grams += (end - start) // length
    if len(columns) != grams or any(not 0 <= column < max(grams, _COLUMNS) for column in columns):
        return f"it has columns {list(columns)[:9]} for {grams} n-grams"
    shortest, longest = attribute_of(node, "min_gram_length"), attribute_of(node, "max_gram_length")
    skips = attribute_of(node, "max_skip_count")
    if not 1 <= shortest <= longest <= len(begins) or not 0 <= skips <= _SKIPS:
        return f"it counts n-grams of {shortest} to {longest} items that stand up to {skips} apart"
    return ""


_SKIPS = 1 << 16
"""Items between two of an n-gram; each number is tried in turn."""
_COLUMNS = 1 << 24
"""Columns of a result that few n-grams make; each takes memory in each row."""

define("RegexFullMatch", no_gradient=STRINGS, smallest=Smallest({"pattern": "x"}), stock=Stock.COMPARED)
define("StringConcat", no_gradient=STRINGS, stock=Stock.COMPARED)
define(
    "StringNormalizer", no_gradient=STRINGS, choices={"case_change_action": ("NONE", "LOWER", "UPPER")},
    stock=Stock.COMPARED,
)  # fmt: skip
define("StringSplit", no_gradient=STRINGS, stock=Stock.COMPARED)
define(
    "TfIdfVectorizer",
    no_gradient=STRINGS,
    choices={"mode": ("TF", "IDF", "TFIDF")},
    fault=_ngrams,
    outrun=Outrun.ALONE,
    smallest=Smallest(
        {"mode": "TF", "ngram_counts": [0], "ngram_indexes": [0], "pool_int64s": [1]}, {"T": "tensor(int64)"}
    ),
)
