"""The table of single layers: those that are behind eager PyTorch, the slowest first."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.figures import newest, origin

__all__ = ["layers"]

_BEHIND = 0.95


def layers() -> Iterable[str]:
    """The layers of the newest row whose step takes longer than eager's."""
    row = newest("layers")
    if row is None:
        return
    slowest_first = sorted(row["layers"].items(), key=lambda item: item[1]["ratio"])
    behind = [(name, figures) for name, figures in slowest_first if figures["ratio"] < _BEHIND]
    yield from ("", "### Single layers", "")
    yield (
        f"Forward and backward of {len(row['layers'])} layers and functions of torch.nn through ORTModule, float32, "
        f"every size planned before, beside eager PyTorch: its time over ORTModule's is {row['geometric_mean']:.2f} in "
        f"geometric mean. {len(behind)} of them take more than 1.05 of eager's time, and stand here; {origin(row)}."
    )
    yield from ("", "| layer | eager, ms | ORTModule, ms | eager / ORTModule |", "|---|---|---|---|")
    for name, figures in behind:
        yield f"| {name} | {figures['eager_ms']:.1f} | {figures['ours_ms']:.1f} | {figures['ratio']:.2f} |"
