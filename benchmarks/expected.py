"""The table of formulations that a new machine begins with: measured here, for the kind of processor that this is.

    python -m benchmarks.expected
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 python -m benchmarks.expected

Writes src/ontrain/providers/torch/expected.json: by kind of processor, number of threads (1, or 2 for more) and layout
of a product, its sizes and the formulation that is about the fastest. Layouts in which that is ATen's for all sizes are
left out. The second command has the libraries take this processor for one with narrower vectors. Of processors that
are not at hand it takes over what `benchmarks.floor` once measured (benchmarks/results/floor.jsonl): whether a
product was faster in oneDNN's order than by ATen. That is "packed" here, whose results lie where they are planned.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import torch

from benchmarks.commands import Command
from benchmarks.rows import RESULTS
from ontrain.providers.torch.expected import kind
from ontrain.providers.torch.lowering.product import _measure
from ontrain.providers.torch.timings import ATEN, choice

FILE = Path(__file__).parents[1] / "src/ontrain/providers/torch/expected.json"
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
            times = next((one for one in tries if one is not None), None)
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
        for one in row["products"]:
            batch, rows, columns, inner = one["product"]
            if batch != 1 or "best" not in one:
                continue
            taken = "packed" if one["best"] == "oneDNN" else ATEN
            kinds.setdefault("amd AVX512", {})[rows, inner, columns] = taken
    return {
        name: {"products": {"2": {"": [[list(sizes), taken] for sizes, taken in sorted(known.items())]}}}
        for name, known in kinds.items()
    }


def main() -> None:
    """Write the file."""
    Command(__doc__).parse_args()
    table = {**json.loads(FILE.read_text(encoding="utf-8")), **recorded(), kind(): measure()}
    lines = [f" {json.dumps(name)}: {json.dumps(table[name])}" for name in sorted(table)]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    for name, about in table.items():
        taken = [row[1] for known in about["products"].values() for rows in known.values() for row in rows]
        print(name, {one: taken.count(one) for one in dict.fromkeys(taken)} or "ATen's for all")


if __name__ == "__main__":
    main()
