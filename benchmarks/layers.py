"""Forward and backward of single layers through ORTModule, beside eager PyTorch: which of them are behind.

    python -m benchmarks.layers [--only Norm,Conv] [--seconds 1.2] [--no-row]

Both take turns in one process, in float32, after two steps that are not timed; the ratio is the median over the turns.
A turn is one step that is not timed, since it finds the other's data in the processor's caches, and four that are. A
step has a product with the batch before the layer and a mean of squares behind it, and no optimizer. Rows go to
benchmarks/results/layers.jsonl.
"""

from __future__ import annotations

import copy
import itertools
import statistics
import time
import warnings
from typing import TYPE_CHECKING

from tqdm import tqdm

from benchmarks.commands import Command
from benchmarks.rows import append_row

if TYPE_CHECKING:
    import torch
    from torch import nn

    from benchmarks.layer_samples import Layer

_FEWEST, _MOST = 5, 40
"""Turns of each sample."""

_STEPS = 4
"""Timed steps of a turn."""


def _seconds(step: nn.Module, batch: tuple[torch.Tensor, ...]) -> float:
    """Return the median seconds of a turn's steps."""
    marks = []
    for _ in range(1 + _STEPS):
        step(*batch).backward()
        marks.append(time.perf_counter())
    return statistics.median(after - before for before, after in itertools.pairwise(marks))


def measure(layer: Layer, seconds: float) -> dict[str, float]:
    """Return the median milliseconds of both, and the median of the ratios."""
    from benchmarks.layer_samples import Step
    from ontrain.training.ortmodule import ORTModule

    eager = Step(layer)
    ours = ORTModule(copy.deepcopy(eager))
    for step in (eager, ours):
        _seconds(step, layer.batch)
    turns: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(turns) < _FEWEST or (len(turns) < _MOST and time.perf_counter() < end):
        turns.append((_seconds(eager, layer.batch), _seconds(ours, layer.batch)))
    eagers, own = zip(*turns, strict=True)
    return {
        "eager_ms": 1e3 * statistics.median(eagers),
        "ours_ms": 1e3 * statistics.median(own),
        "ratio": statistics.median(a / b for a, b in turns),
    }


def main() -> None:
    """Print the table, the slowest first, and append a row."""
    parser = Command(__doc__)
    parser.add_argument("--only", default="", help="parts of the layers' names, by commas; by default all")
    parser.add_argument("--seconds", type=float, default=1.2, help="for each layer")
    parser.add_argument("--no-row", action="store_true", help="print only")
    arguments = parser.parse_args()
    import torch

    from benchmarks.layer_samples import layers

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    chosen = {
        name: layer for name, layer in layers().items()
        if any(part.lower() in name.lower() for part in arguments.only.split(","))
    }  # fmt: skip
    if not chosen:
        parser.error(f"no layer's name has {arguments.only!r} in it")
    results = {name: measure(layer, arguments.seconds) for name, layer in tqdm(chosen.items(), unit="layer")}
    for name, figures in sorted(results.items(), key=lambda item: item[1]["ratio"]):
        print(
            f"{name:34} eager {figures['eager_ms']:7.2f} ms  ours {figures['ours_ms']:7.2f} ms  {figures['ratio']:5.2f}"
        )
    mean = statistics.geometric_mean(figures["ratio"] for figures in results.values())
    print(f"geometric mean of {len(results)}: {mean:.2f}")
    if not arguments.no_row and not arguments.only:
        append_row("layers", {"benchmark": "layers", "layers": results, "geometric_mean": mean})


if __name__ == "__main__":
    main()
