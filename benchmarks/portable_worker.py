"""The artifacts' training step in one process, driven as `benchmarks.serving` says, and the files that it reads."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import incumbent_files, models, serving

_LR = 1e-4


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
    incumbent_files.export(model, batches, folder, _LR)


def serve(folder: Path) -> None:
    """Make steps with `ontrain.training.api` until standard input ends."""
    turns = itertools.count()
    held = np.load(folder / "batches.npz")
    count = len({key.partition(".")[0] for key in held.files})

    def start() -> Callable[[], float]:
        import onnxruntime

        from ontrain.training import api, artifacts

        trainable = json.loads((folder / "trainable.json").read_text())
        target = folder / "portable"
        target.mkdir()
        artifacts.generate_artifacts(
            str(folder / "forward.onnx"), requires_grad=trainable, optimizer=artifacts.OptimType.AdamW,
            artifact_directory=str(target),
        )  # fmt: skip
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("BENCH_THREADS", os.cpu_count() or 1))
        options.log_severity_level = 3
        state = api.CheckpointState.load_checkpoint(str(target / "checkpoint"))
        module = api.Module(
            str(target / "training_model.onnx"), state, str(target / "eval_model.onnx"), session_options=options
        )
        optimizer = api.Optimizer(str(target / "optimizer_model.onnx"), module)
        optimizer.set_learning_rate(_LR)
        module.train()
        feeds = [[held[f"{i}.{name}"] for name in module.input_names()] for i in range(count)]

        def step() -> float:
            loss = module(*feeds[next(turns) % count])
            optimizer.step()
            module.lazy_reset_grad()
            return float(np.asarray(loss))

        return step

    serving.serve(start, count)


if __name__ == "__main__":
    if sys.argv[1] == "export":
        export(sys.argv[2], Path(sys.argv[3]))
    else:
        serve(Path(sys.argv[2]))
