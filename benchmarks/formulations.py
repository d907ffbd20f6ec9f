"""The formulations of products that are about the fastest, measured here."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from ontrain.providers.torch.lowering.product import _measure
from ontrain.providers.torch.timings import choice

__all__ = ["measure"]

LAYOUTS = (
    "NTN",
    "NTN + bias",
    "NTN + result",
    "NNN",
    "NNN + bias",
    "NNN + result",
    "TNN",
    "TNN + result",
    "TNn",
    "nTN",
)
ROWS = (64, 128, 256, 512, 1024, 2048)
LAYERS = (
    (256, 256), (256, 1024), (1024, 256), (384, 1536), (1536, 384), (768, 768), (768, 2304), (3072, 768), (768, 3072)
)  # fmt: skip
SIZES = [(rows, *layer) for rows, layer in itertools.product(ROWS, LAYERS)]
_TRIES = 3


def measure() -> dict[str, Any]:
    """Return what is to be known about this kind of processor."""
    products: dict[str, dict[str, list[Any]]] = {}
    rates = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        known = products.setdefault(str(threads), {})
        for layout, sizes in itertools.product(LAYOUTS, SIZES):
            orders, _, added = layout.partition(" ")
            tries = (_measure(sizes, orders, f" {added}" if added else "") for _ in range(_TRIES))
            times = next((measured for measured in tries if measured is not None), None)
            if times is None:
                continue  # the machine is too busy
            name = "x".join(map(str, sizes)) + " " + layout
            known.setdefault(layout, []).append([list(sizes), choice(name, times)])
            rates.append(2 * math.prod(sizes) / min(times.values()) / threads)
    # Half of what is usual, so that a slower one of its kind is not disbelieved.
    return {"rate": float(f"{sorted(rates)[len(rates) // 2] / 2:.2g}"), "products": products}
