"""The incumbent's training step in its own environment: run by the Python that `benchmarks.peers` made.

`folder` holds forward.onnx and batches.npz, written by `benchmarks.incumbent_files.export`. Speaks as
`benchmarks.worker` does: a line with a number on standard input makes so many steps. This is the on-device training API
(training graph, AdamW graph, flat state), the one of the incumbent's engines that needs no build of its own against a
torch version.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import serving


def build(folder: Path, threads: int) -> tuple[Any, Any, Any]:
    """Return the incumbent's module, optimizer and state for the exported forward graph."""
    import onnxruntime
    from onnxruntime.training import api, artifacts

    model = onnx.load(str(folder / "forward.onnx"))
    for node in model.graph.node:
        if node.op_type in ("MaxPool", "SoftmaxCrossEntropyLoss") and len(node.output) == 1:
            node.output.append(f"{node.output[0]}_second")  # which the incumbent's gradient reads
    trainable = json.loads((folder / "trainable.json").read_text())
    written = folder / "artifacts"
    written.mkdir(exist_ok=True)
    artifacts.generate_artifacts(
        model, requires_grad=trainable, optimizer=artifacts.OptimType.AdamW, artifact_directory=str(written)
    )
    _torch_adamw(written / "optimizer_model.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    state = api.CheckpointState.load_checkpoint(str(written / "checkpoint"))
    module = api.Module(
        str(written / "training_model.onnx"), state, str(written / "eval_model.onnx"), device="cpu",
        session_options=options,
    )  # fmt: skip
    optimizer = api.Optimizer(str(written / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(float((folder / "lr").read_text()))
    module.train()
    return module, optimizer, state


def _torch_adamw(path: Path) -> None:
    """Give the optimizer torch's AdamW: its own default adds epsilon before the bias correction and decays nothing."""
    model = onnx.load(str(path))
    values = {"adam_mode": 0, "epsilon": 1e-8, "weight_decay": 0.01}
    for node in model.graph.node:
        for attribute in node.attribute if node.op_type == "AdamWOptimizer" else ():
            if attribute.name in values:
                attribute.CopyFrom(onnx.helper.make_attribute(attribute.name, values[attribute.name]))
    onnx.save(model, str(path))


def batches(folder: Path, names: list[str]) -> list[list[np.ndarray[Any, Any]]]:
    """Return the batches in the order of the graph's inputs."""
    held = np.load(folder / "batches.npz")
    return [[held[f"{index}.{name}"] for name in names] for index in range(_count(held))]


def _count(held: Any) -> int:
    return len({key.partition(".")[0] for key in held.files})


def serve(folder: Path) -> None:
    """Make steps until standard input ends."""
    done = itertools.count()

    def start() -> Callable[[], float]:
        module, optimizer, _ = build(folder, int(os.environ.get("BENCH_THREADS", os.cpu_count() or 1)))
        feeds = batches(folder, module.input_names())

        def step() -> float:
            loss = module(*feeds[next(done) % len(feeds)])
            optimizer.step()
            module.lazy_reset_grad()
            return float(np.asarray(loss))

        return step

    serving.serve(start, _count(np.load(folder / "batches.npz")))


def train(folder: Path, steps: int) -> None:
    """Write losses of `steps` steps and the gradients of the first to incumbent.npz."""
    module, optimizer, state = build(folder, os.cpu_count() or 1)
    feeds = batches(folder, module.input_names())
    losses, gradients = [], {}
    for index in range(steps):
        losses.append(float(np.asarray(module(*feeds[index % len(feeds)]))))
        if index == 0:
            for name, parameter in state.parameters:
                if parameter.requires_grad:
                    gradients[name] = parameter.grad.copy()
        optimizer.step()
        module.lazy_reset_grad()
    np.savez(folder / "incumbent.npz", losses=np.array(losses), **gradients)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        train(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        serve(Path(sys.argv[1]))
