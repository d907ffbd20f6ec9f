"""The tables of the README: each line says what a step reads, and whether its sizes were planned before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.figures import EPOCH_TITLES, WORKLOADS, Row, marks_of, newest_of_each, processor
from benchmarks.half_table import ONEDNN_PRODUCTS, half_headlines
from benchmarks.workloads import MODELS

__all__ = ["headlines"]

_PEERS = {
    "eager-malloc": "eager, malloc told to keep memory",
    "compile": "torch.compile",
    "incumbent": "onnxruntime-training 1.19.2",
}
Ratio = tuple[str, str, float]
"""A line's title, the processor, and the time of eager PyTorch over ours."""


def headlines() -> Iterable[str]:
    """Eager PyTorch's time over ours, by processor; then the other peers, where torch.compile ran."""
    steps = [row for model in MODELS for row in newest_of_each("step", model=model, caches="empty")]
    ratios = [*_steps(steps), *_epochs(), *half_headlines()]
    versions, cores = steps[0]["versions"], {row["hardware"]["cores"] for row in steps}
    yield (
        f"Eager PyTorch's time over ours on {' or '.join(map(str, sorted(cores)))} cores of a processor (torch "
        f"{versions['torch']}, float32, dropout 0.1, fused AdamW, 4 layers 768 wide, all caches empty), alternating "
        "step by step in one run:"
    )
    yield ""
    yield from _by_processor(ratios)
    yield from ("", ONEDNN_PRODUCTS, "")
    yield "The other ways to take a step, where torch.compile ran, too: their time over ours, sizes planned before:"
    yield ""
    yield from _others([row for row in steps if "compile" in row["engines"]])
    yield ""
    yield "`make bench` measures all of it; its commands and rows: [docs/performance.md](docs/performance.md)."


def _steps(steps: Sequence[Row]) -> Iterator[Ratio]:
    for row in steps:
        title = f"{WORKLOADS[row['model']]}; sizes planned before"
        yield title, processor(row), row["engines"]["eager"]["ratio"]


def _epochs() -> Iterator[Ratio]:
    for data, title in EPOCH_TITLES.items():
        for row in newest_of_each("epoch", data=data, caches="empty"):
            for mark in marks_of(row):
                whole = f"{title}: the first {mark} steps, capture and plans included"
                yield whole, processor(row), row["engines"]["eager"][f"ratio_{mark}"]


def _by_processor(ratios: Sequence[Ratio]) -> Iterator[str]:
    names = sorted({name for _, name, _ in ratios}, reverse=True)
    figures = {(title, name): ratio for title, name, ratio in ratios}
    yield f"| eager's time / ours | {' | '.join(names)} |"
    yield "|---|" + "---|" * len(names)
    for title in dict.fromkeys(title for title, _, _ in ratios):
        cells = (f"{figures[title, name]:.2f}" if (title, name) in figures else "–" for name in names)
        yield f"| {title} | {' | '.join(cells)} |"


def _others(steps: Sequence[Row]) -> Iterator[str]:
    yield f"| their time / ours | processor | {' | '.join(_PEERS.values())} | our first step / torch.compile's |"
    yield "|---|---|" + "---|" * (len(_PEERS) + 1)
    for row in steps:
        engines = row["engines"]
        ratios = " | ".join(f"{engines[peer]['ratio']:.2f}" if peer in engines else "–" for peer in _PEERS)
        first = engines["ontrain"]["first_step_s"] / engines["compile"]["first_step_s"]
        yield f"| {WORKLOADS[row['model']]} | {processor(row)} | {ratios} | {first:.2f} |"
