"""The tables of the README: each line says what a step reads, and whether its sizes were planned before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.figures import EPOCH_TITLES, WORKLOADS, Row, marks_of, newest_of_each, processor
from benchmarks.half_table import half_headlines, onednn_remark
from benchmarks.workloads import MODELS

__all__ = ["headlines"]

_PEERS = {
    "eager": "eager",
    "eager-malloc": "eager, malloc told to keep memory",
    "compile": "torch.compile",
    "incumbent": "onnxruntime-training 1.19.2",
}


def headlines() -> Iterable[str]:
    """A table for each processor that was measured, the latest first."""
    steps = [row for model in MODELS for row in newest_of_each("step", model=model, caches="empty")]
    for name in sorted({processor(row) for row in steps}, reverse=True):
        yield from _table(name, [row for row in steps if processor(row) == name])
    yield "`make bench` measures all of it; its commands and rows: [docs/performance.md](docs/performance.md)."


def _table(name: str, steps: Sequence[Row]) -> Iterable[str]:
    hardware, versions = steps[0]["hardware"], steps[0]["versions"]
    vector = ", AVX-512" if hardware["avx512"] else ""
    yield (
        f"Measured on {hardware['cores']} cores of an {name}{vector} (torch {versions['torch']}, float32, dropout 0.1, "
        "fused AdamW, 4 layers 768 wide, all caches empty), alternating step by step in one run:"
    )
    heads = " | ".join(_PEERS.values())
    yield from ("", f"| their time / ours | {heads} | our first step / torch.compile's |", "|---|---|---|---|---|---|")
    for row in steps:
        engines = row["engines"]
        first = "–"
        if "compile" in engines:
            first = f"{engines['ontrain']['first_step_s'] / engines['compile']['first_step_s']:.2f}"
        yield f"| {WORKLOADS[row['model']]}; sizes planned before | {_ratios(engines, 'ratio')} | {first} |"
    for row in (row for data in EPOCH_TITLES for row in newest_of_each("epoch", data=data, caches="empty")):
        for mark in marks_of(row) if processor(row) == name else ():
            ratios = _ratios(row["engines"], f"ratio_{mark}")
            title = EPOCH_TITLES[row["data"]]
            yield f"| {title}: the first {mark} steps, capture and plans included | {ratios} | – |"
    yield from half_headlines(name)
    yield from onednn_remark(name)
    yield ""


def _ratios(engines: dict[str, dict[str, float]], key: str) -> str:
    return " | ".join(f"{engines[peer][key]:.2f}" if peer in engines else "–" for peer in _PEERS)
