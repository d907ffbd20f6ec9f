"""Strings."""

from __future__ import annotations

from ontrain.operators.record import Smallest, define

__all__: list[str] = []

STRINGS = "it works on strings"

define("RegexFullMatch", no_gradient=STRINGS, smallest=Smallest({"pattern": "x"}))
define("StringConcat", no_gradient=STRINGS)
define("StringNormalizer", no_gradient=STRINGS)
define("StringSplit", no_gradient=STRINGS)
define(
    "TfIdfVectorizer",
    no_gradient=STRINGS,
    smallest=Smallest(
        {"mode": "TF", "ngram_counts": [0], "ngram_indexes": [0], "pool_int64s": [1]}, {"T": "tensor(int64)"}
    ),
)
