"""The artifacts' training step on stock onnxruntime beside onnxruntime-training's own on-device API.

    python -m benchmarks.peers                                once: makes the incumbent's environment
    python -m benchmarks.portable [--model bert] [--rounds 8]

Both get the same forward graph, exported at opset 17 with its dropout, the same batch, and AdamW; both are called
through `training.api`'s Module and Optimizer, from the same code. ontrain's graphs consist of standard operators, which
any onnxruntime runs; the incumbent has kernels for gradients and optimizers. The two take turns, one step each.

bert: 4 layers of BERT-base's width, masked language modelling, 8 × 128 tokens, 15 % labelled.
conv: two convolutions with pooling and two linear layers, 64 pictures of 28 × 28.

Rows go to benchmarks/results/portable.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import incumbent, models, serving, step
from benchmarks.commands import Command
from benchmarks.peers import incumbent_python
from benchmarks.rows import append_row

MODELS = ("bert", "conv")
_LR = 1e-4


class _Worker(step.Worker):
    """A process with one of the two runtimes."""

    def _command(self, engine: str, model: str, layers: int) -> list[str]:
        folder = self._folder.name
        export = [sys.executable, "-m", "benchmarks.portable", "--export", folder, "--model", model]
        subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
        if engine == "incumbent":
            return [str(incumbent_python()), "-m", "benchmarks.incumbent_worker", folder]
        return [sys.executable, "-m", "benchmarks.portable", "--serve", folder]


class _Pictures(nn.Module):
    """A small convolutional classifier that returns its loss as Hugging Face's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor) -> Any:
        return SimpleNamespace(loss=nn.functional.cross_entropy(self.layers(pictures), labels))


def export(name: str, folder: Path) -> None:
    """Write the forward graph and the batches."""
    if name == "bert":
        model, batches = models.make("bert")
    else:
        torch.manual_seed(0)
        model = _Pictures().train()
        batches = [{"pictures": torch.randn(64, 1, 28, 28), "labels": torch.randint(0, 10, (64,))} for _ in range(4)]
    incumbent.export(model, batches, folder, _LR)


def serve(folder: Path) -> None:
    """Make steps with `ontrain.training.api` until standard input ends."""
    turns = itertools.count()
    held = np.load(folder / "batches.npz")
    count = len({key.partition(".")[0] for key in held.files})

    def start() -> Callable[[], float]:
        import onnxruntime

        from ontrain.training import api, artifacts

        trainable = json.loads((folder / "trainable.json").read_text())
        made = folder / "portable"
        made.mkdir()
        artifacts.generate_artifacts(
            str(folder / "forward.onnx"), requires_grad=trainable, optimizer=artifacts.OptimType.AdamW,
            artifact_directory=str(made),
        )  # fmt: skip
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("BENCH_THREADS", os.cpu_count() or 1))
        options.log_severity_level = 3
        state = api.CheckpointState.load_checkpoint(str(made / "checkpoint"))
        module = api.Module(
            str(made / "training_model.onnx"), state, str(made / "eval_model.onnx"), session_options=options
        )
        optimizer = api.Optimizer(str(made / "optimizer_model.onnx"), module)
        optimizer.set_learning_rate(_LR)
        module.train()
        feeds = [[held[f"{i}.{name}"] for name in module.input_names()] for i in range(count)]

        def one() -> float:
            loss = module(*feeds[next(turns) % count])
            optimizer.step()
            module.lazy_reset_grad()
            return float(np.asarray(loss))

        return one

    serving.serve(start, count)


def main() -> None:
    """Print a table for each model and append a row."""
    parser = Command(__doc__)
    parser.add_argument("--model", action="append", choices=MODELS, help="may be repeated; by default all")
    parser.add_argument("--rounds", type=int, default=8, help="alternating rounds")
    parser.add_argument("--export", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve(arguments.serve)
        return
    if arguments.export is not None:
        export(arguments.model[0], arguments.export)
        return
    for model in arguments.model or MODELS:
        figures = measure(model, arguments.rounds)
        step.show(f"{model}, {arguments.rounds} alternating rounds", figures)
        row = {"benchmark": "portable", "model": model, "rounds": arguments.rounds}
        append_row("portable", {**row, "engines": figures})


def measure(model: str, rounds: int) -> dict[str, dict[str, float]]:
    """Return both engines' figures, ontrain's first: ratios refer to it."""
    return step.measure(model, 4, ["portable", "incumbent"], rounds, worker=_Worker)


if __name__ == "__main__":
    main()
