"""What is known of processors by their kind: the formulation that is fast for a product, before it is measured.

`expected.json` is written by `python -m benchmarks.expected`. All formulations are right on all processors; a kind
that is not in the table takes ATen's.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Collection, Sequence
from importlib.resources import files
from typing import Any

import torch

from ontrain.providers.torch import processor
from ontrain.providers.torch.timings import ATEN, sizes_of

__all__ = ["distance", "distance_to_known", "expected", "expected_rate", "is_known", "kind", "layout_of"]

_RATE = 1e10
"""Floating-point operations a second that a core reaches of which nothing is known."""


def expected(product: str, names: Collection[str]) -> str:
    """Return the formulation that is fast for products like this one on processors like this one.

    Args:
        product: its name; of the table's products in the same layout the one of the nearest sizes answers.
        names: the formulations that there are.
    """
    name = _nearest(product)[1]
    return name if name in names else ATEN


def distance_to_known(product: str) -> float:
    """Return how far the product lies whose formulation is expected, see `distance`; infinity if there is none."""
    return _nearest(product)[0]


def distance(sizes: Sequence[int], others: Sequence[int]) -> float:
    """Return how unlike the sizes of two products are: the distance of their logarithms to the base two."""
    return math.dist([math.log2(size) for size in sizes], [math.log2(size) for size in others])


def _nearest(product: str) -> tuple[float, str]:
    known = _products() or {}
    layout = layout_of(product)
    # Gaps between rows and what is added matter less than which way a matrix lies.
    orders = layout.partition(" ")[0]
    likenesses = (layout, orders, orders.replace("w", "n"), orders.replace("w", "n").upper(), "")
    rows: list[tuple[list[int], str]] = next((known[likeness] for likeness in likenesses if likeness in known), [])
    mine = sizes_of(product)
    return min(((distance(sizes, mine), name) for sizes, name in rows), default=(math.inf, ATEN))


def is_known() -> bool:
    """Return whether the table says anything of processors of this kind, at this number of threads."""
    return _products() is not None


def expected_rate() -> float:
    """Return the floating-point operations a second that a core of this kind reaches at least, in a large product."""
    return float(_known().get("rate", _RATE))


def layout_of(product: str) -> str:
    """Return a product's name without its sizes: "NTN + bias"."""
    return product.partition(" ")[2]


@functools.cache
def kind() -> str:
    """Return the processor's maker, generation and the widest vectors that torch's kernels use.

    "amd Zen 4 AVX512", "intel AMX". A Zen 5 multiplies twice as many numbers at once as a Zen 4, and what is fast on
    the one is slow on the other.
    """
    vectors = torch.backends.cpu.get_cpu_capability()
    if vectors == "AVX512" and "amx_tile" in processor.flags():
        vectors = "AMX"
    # With narrower vectors a processor is like an older one of its maker.
    generation = processor.generation() if vectors == "AVX512" else None
    return " ".join(filter(None, (processor.maker(), generation, vectors)))


def _products() -> dict[str, list[tuple[list[int], str]]] | None:
    """By layout, sizes and the formulation that is fast for them."""
    threads = "1" if torch.get_num_threads() == 1 else "2"
    products: dict[str, list[tuple[list[int], str]]] | None = _known().get("products", {}).get(threads)
    return products


def _known() -> dict[str, Any]:
    """The table's part for this kind of processor. Tiles multiply no float32: they make no difference."""
    table = _table()
    mine: dict[str, Any] = table.get(kind()) or table.get(kind().replace("AVX512", "AMX")) or {}
    return mine


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((files(__package__) / "expected.json").read_text(encoding="utf-8"))
    return table
