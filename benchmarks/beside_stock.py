"""The latency of models on TorchExecutionProvider beside stock onnxruntime, each on one thread, called in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ontrain
from benchmarks.rows import append_row

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Feeds", "Model", "compare"]

Feeds = dict[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Model:
    """A model with what it is fed.

    Attributes:
        text: what the table calls it.
        told: what its row says of it.
        source: its file, or the bytes of one.
        feeds: by input.
    """

    text: str
    told: Mapping[str, Any]
    source: Path | bytes
    feeds: Feeds


def _microseconds(session: Any, feeds: Feeds, runs: int) -> float:
    before = time.thread_time_ns()
    for _ in range(runs):
        session.run(None, feeds)
    return (time.thread_time_ns() - before) / runs / 1e3


def _measure(model: Model, seconds: float) -> tuple[float, float]:
    """Microseconds of a run of stock onnxruntime and of ontrain's provider, each of its fastest round."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    theirs = onnxruntime.InferenceSession(model.source, options, providers=["CPUExecutionProvider"])
    ours = ontrain.InferenceSession(model.source, providers=["TorchExecutionProvider"])
    for session in (theirs, ours) * 3:
        session.run(None, model.feeds)
    runs = max(1, int(20_000 / _microseconds(theirs, model.feeds, 2)))
    end, rounds = time.monotonic() + seconds, list[tuple[float, float]]()
    while time.monotonic() < end or len(rounds) < 3:
        rounds.append((_microseconds(theirs, model.feeds, runs), _microseconds(ours, model.feeds, runs)))
    stock, own = map(min, zip(*rounds, strict=True))
    return stock, own


def compare(results: str, models: Iterable[Model], seconds: float, *, dry: bool) -> None:
    """Print a table with the geometric mean of the ratios, and append a row for each model.

    Args:
        results: the name of the file of rows.
        models: are measured as they come.
        seconds: for each model.
        dry: whether to append no rows.

    Raises:
        SystemExit: there are none.
    """
    import onnxruntime
    import torch

    onnxruntime.set_default_logger_severity(4)
    torch.set_num_threads(1)
    ratios = []
    for model in models:
        stock, own = _measure(model, seconds)
        ratios.append(own / stock)
        print(f"{model.text} {stock:11.1f} µs {own:11.1f} µs {own / stock:7.2f}", flush=True)
        if not dry:
            append_row(results, {**model.told, "onnxruntime_us": stock, "ontrain_us": own, "ratio": own / stock})
    if not ratios:
        raise SystemExit("nothing was measured: no model has such a name, or its package is not installed")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"{len(ratios)} models, geometric mean {mean:.2f}, largest {max(ratios):.2f}")
