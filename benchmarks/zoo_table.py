"""The tables of the zoo: many models on each processor, the worst first."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from benchmarks.figures import Row, origin, processor, rows

__all__ = ["zoo"]

_OURS = ("ORTModule", "ORTTrainer")


def zoo() -> Iterable[str]:
    """Each model's newest row on each processor: time against eager PyTorch and the best that users have otherwise."""
    measured = rows("zoo")
    if not measured:
        return
    noted = [row for row in measured if "generation" in row["hardware"]]
    yield from ("", "### Many models", "")
    yield (
        "A training step, forward, backward and fused AdamW, in float32, the engines taking turns, nothing measured "
        "beforehand. A peer is what users have without ontrain: eager PyTorch, its channels_last order for images, and "
        "torch.compile where it was measured."
    )
    for name in sorted({processor(row) for row in noted or measured}, reverse=True):
        yield from _of_processor(name, [row for row in noted or measured if processor(row) == name])


def _of_processor(name: str, measured: Iterable[Row]) -> Iterable[str]:
    """The newest row of each model, the worst first."""
    of_models: dict[str, Row] = {row["model"]: row for row in measured}
    worst_first = sorted(of_models.values(), key=lambda row: _gain(row, "ORTModule"))
    gains = {kind: [_gain(row, kind) for row in worst_first if kind in row["seconds"]] for kind in _OURS}
    means = {kind: statistics.geometric_mean(of_kind) for kind, of_kind in gains.items()}
    below = sum(_peer(row) / row["seconds"]["ORTModule"] < 1 for row in worst_first)
    yield from ("", f"#### {name}", "")
    yield (
        f"Of {len(of_models)} models eager PyTorch's time over ORTModule's is {means['ORTModule']:.2f} in geometric "
        f"mean, over ORTTrainer's {means['ORTTrainer']:.2f}; {below} are slower under ORTModule than the best peer. "
        f"The last model: {origin(worst_first[-1])}."
    )
    yield ""
    yield (
        "| model | eager, ms | eager / ORTModule | eager / ORTTrainer | best peer / ORTModule | first step, s "
        "| peak / eager's |"
    )
    yield "|---|---|---|---|---|---|---|"
    for row in worst_first:
        seconds, peaks = row["seconds"], row["peak_mib"]
        trainer = f"{_gain(row, 'ORTTrainer'):.2f}" if "ORTTrainer" in seconds else "no single graph"
        yield (
            f"| {row['model']} | {seconds['eager'] * 1e3:.1f} | {_gain(row, 'ORTModule'):.2f} | {trainer} | "
            f"{_peer(row) / seconds['ORTModule']:.2f} | {seconds['first']:.1f} | "
            f"{peaks['ORTModule'] / peaks['eager']:.2f} |"
        )


def _gain(row: Row, engine: str) -> float:
    gain: float = row["seconds"]["eager"] / row["seconds"][engine]
    return gain


def _peer(row: Row) -> float:
    """The least time of an engine that is not ours."""
    return min(time for name, time in row["seconds"].items() if name not in (*_OURS, "first"))
