"""What a finished run is compared with: the speed of eager PyTorch, in report.html beside all else that is known."""

from __future__ import annotations

import itertools
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import torch
from harness.provenance import command_line, versions
from torch import Tensor

from ontrain import InferenceSession
from ontrain.session.report import write_report
from ontrain.training.environment import collect_environment

TIMED_PAIRS = 30

Batches = Sequence[tuple[Tensor, Tensor]]


def evaluate_onnx(path: Path, batches: Batches) -> float:
    """Mean loss a word of the exported file in stock onnxruntime; the softmax is taken in double precision."""
    session, total, count = InferenceSession(str(path)), 0.0, 0
    for src, label in batches:
        (logits,) = session.run(["output"], {"src": src.numpy()})
        logits = np.asarray(logits, np.float64).reshape(len(label), -1)
        logits -= logits.max(axis=1, keepdims=True)
        picked = logits[np.arange(len(label)), label.numpy()]
        total += len(src) * float((np.log(np.exp(logits).sum(axis=1)) - picked).mean())
        count += len(src)
    return total / count


def alternate(trainers: Sequence[Any], batches: Batches) -> list[float]:
    """Median milliseconds a step of each trainer, all stepping on the same batches in turn.

    What else the machine does then slows all of them alike. Who goes first changes from batch to batch, and the first
    three batches only warm up.
    """
    times: list[list[float]] = [[] for _ in trainers]
    for i, (src, label) in enumerate(itertools.islice(itertools.cycle(batches), 3 + TIMED_PAIRS)):
        order = list(zip(trainers, times, strict=True))
        for trainer, spent in order if i % 2 else order[::-1]:
            start = time.perf_counter()
            trainer.train_step(src, label)
            spent.append(1000 * (time.perf_counter() - start))
    return [statistics.median(spent[3:]) for spent in times]


def compare(
    trainer: Any, twin: Any, batches: Batches, output: Path, metrics: Sequence[Mapping[str, Any]], facts: dict[str, str]
) -> str:
    """Measure steps, write report.html, and return what was measured.

    Args:
        trainer: after its training.
        twin: in eager PyTorch; None where the trainer is eager itself.
        batches: of equal length.
        output: the run's folder, with model.onnx.
        metrics: rows of the journal.
        facts: for the report.
    """
    if twin is not None:
        ms, eager_ms = alternate([trainer, twin], batches)
        graph, memory = trainer.step_model(), trainer.peak_memory() | _process_peak()
        speed = f"step: ontrain {ms:.1f} ms, eager PyTorch {eager_ms:.1f} ms ({eager_ms / ms:.2f}x), alternating"
    else:
        graph, memory = onnx_ir.load(output / "model.onnx"), _process_peak()
        speed = f"step: eager PyTorch {alternate([trainer], batches)[0]:.1f} ms,"
    speed += f" medians over {TIMED_PAIRS} batches"
    processor = collect_environment().system["processor"]
    about = {
        "speed": speed,
        "command": command_line(),
        "versions": ", ".join(f"{name} {number}" for name, number in versions("onnxruntime").items()),
        "machine": f"{processor}, {torch.get_num_threads()} threads, {platform.system()}",
    }
    write_report(
        output / "report.html", title="Getting started: a transformer language model", metrics=metrics,
        operators=trainer.profile(*batches[0]), peak_memory=memory, graph=graph, facts=facts | about,
    )  # fmt: skip
    return speed


def _process_peak() -> dict[str, int]:
    """The most memory that this process ever had resident, in bytes, where the system counts it."""
    if sys.platform == "win32":
        return {}
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return {"whole process, resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
