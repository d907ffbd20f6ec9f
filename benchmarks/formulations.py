"""The formulations of products that are about the fastest, measured here or by rows of the floor."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import torch

from benchmarks.rows import RESULTS
from ontrain.providers.torch.lowering.product import _measure
from ontrain.providers.torch.timings import ATEN, choice

__all__ = ["measure", "recorded"]

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
SIZES = [
    (rows, inner, columns)
    for rows, (inner, columns) in itertools.product(
        (128, 512, 1024), ((256, 256), (768, 768), (768, 2304), (3072, 768), (768, 3072))
    )
]
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
    return {"rate": float(f"{sorted(rates)[len(rates) // 2] / 2:.2g}"), "products": _told(products)}


def _told(products: dict[str, dict[str, list[Any]]]) -> dict[str, dict[str, list[Any]]]:
    return {
        threads: {layout: rows for layout, rows in known.items() if any(row[1] != ATEN for row in rows)}
        for threads, known in products.items()
    }


def recorded() -> dict[str, dict[str, Any]]:
    """Return what rows of the floor say of other kinds of processors."""
    kinds: dict[str, dict[str, Any]] = {}
    for line in (RESULTS / "floor.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "AMD" not in row["hardware"]["cpu"] or not row["hardware"]["avx512"] or row["hardware"]["cores"] < 2:
            continue
        for product in row["products"]:
            batch, rows, columns, inner = product["product"]
            if batch != 1 or "best" not in product:
                continue
            taken = "packed" if product["best"] == "oneDNN" else ATEN
            kinds.setdefault("amd AVX512", {})[rows, inner, columns] = taken
    return {
        name: {"products": {"2": {"": [[list(sizes), taken] for sizes, taken in sorted(known.items())]}}}
        for name, known in kinds.items()
    }
