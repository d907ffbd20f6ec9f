"""The table of the zoo: many models, the worst first."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from benchmarks.figures import Row, origin, rows

__all__ = ["zoo"]

_OURS = ("ORTModule", "ORTTrainer")


def zoo() -> Iterable[str]:
    """Each model's newest row: time against eager PyTorch and against the best that users have without ontrain."""
    of_models: dict[str, Row] = {row["model"]: row for row in rows("zoo")}
    if not of_models:
        return
    worst_first = sorted(of_models.values(), key=lambda row: _gain(row, "ORTModule"))
    means = {name: statistics.geometric_mean(_gain(row, name) for row in worst_first) for name in _OURS}
    below = sum(_peer(row) / row["seconds"]["ORTModule"] < 1 for row in worst_first)
    yield from ("", "### Many models", "")
    compiled = ", and torch.compile" if any("compile" in row["seconds"] for row in worst_first) else ""
    yield (
        f"A step of {len(of_models)} models, forward, backward and fused AdamW, in float32, the engines taking turns, "
        f"nothing measured beforehand. Eager PyTorch's time over ORTModule's is {means['ORTModule']:.2f} in geometric "
        f"mean, over ORTTrainer's {means['ORTTrainer']:.2f}. Of {len(of_models)} models, {below} are slower under "
        "ORTModule than the best of what users have without ontrain: eager PyTorch, its channels_last order for images"
        f"{compiled}."
    )
    yield ""
    yield f"Of the last model: {origin(worst_first[-1])}."
    yield ""
    yield (
        "| model | eager, ms | eager / ORTModule | eager / ORTTrainer | best peer / ORTModule | first step, s "
        "| peak / eager's |"
    )
    yield "|---|---|---|---|---|---|---|"
    for row in worst_first:
        seconds, peaks = row["seconds"], row["peak_mib"]
        yield (
            f"| {row['model']} | {seconds['eager'] * 1e3:.1f} | {_gain(row, 'ORTModule'):.2f} | "
            f"{_gain(row, 'ORTTrainer'):.2f} | {_peer(row) / seconds['ORTModule']:.2f} | {seconds['first']:.1f} | "
            f"{peaks['ORTModule'] / peaks['eager']:.2f} |"
        )


def _gain(row: Row, engine: str) -> float:
    gain: float = row["seconds"]["eager"] / row["seconds"][engine]
    return gain


def _peer(row: Row) -> float:
    """The least time of an engine that is not ours."""
    return min(time for name, time in row["seconds"].items() if name not in (*_OURS, "first"))
