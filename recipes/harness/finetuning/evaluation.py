"""A trained model's logits twice: in PyTorch, and of its ONNX file in stock onnxruntime; and how far they agree."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.export import export
from harness.files import write_json
from harness.finetuning.examples import Examples
from harness.provenance import command_line, versions
from ontrain import InferenceSession

NOWHERE = float(np.finfo(np.float32).min)
"""Stands for the logit of a place beyond the batch that the row was in."""
TOLERANCE = 1e-3
"""Logits of the two engines that are farther apart are a mistake, not rounding."""

Logits = list[NDArray[np.float32]]


def logits_of_both(
    model: nn.Module, file: Path, examples: Examples, outputs: Mapping[str, int], batch_size: int, device: torch.device
) -> tuple[dict[str, Logits], float]:
    """Return both engines' logits, [N, columns] for each output, and the largest difference between them.

    Args:
        model: computes on the device, in evaluation mode.
        file: the model as `write_onnx` wrote it; onnxruntime computes on the CPU.
        examples: N of them; where the batch of one is shorter than it has columns, its logits are NOWHERE.
        outputs: their names, with their columns: as many as an example has tokens, or a number of classes.
        batch_size: of both engines.
        device: of PyTorch.
    """
    session, names = InferenceSession(file), list(outputs)
    model.to(device).eval()

    @torch.no_grad()
    def in_torch(batch: dict[str, Tensor]) -> Iterable[NDArray[np.float32]]:
        results = model(**{name: tensor.to(device) for name, tensor in batch.items()})
        return [results[name].float().cpu().numpy() for name in names]

    def in_onnx(batch: dict[str, Tensor]) -> Iterable[NDArray[np.float32]]:
        return session.run(names, {name: tensor.numpy() for name, tensor in batch.items()})

    ours, theirs = (_logits(examples, batch_size, outputs, run) for run in (in_torch, in_onnx))
    apart = max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))
    return {"PyTorch": ours, "onnxruntime": theirs}, apart


def _logits(
    examples: Examples, batch_size: int, outputs: Mapping[str, int],
    run: Callable[[dict[str, Tensor]], Iterable[NDArray[np.float32]]],
) -> Logits:  # fmt: skip
    """Rows of like length run together; where they came from is where they go to."""
    order = np.argsort(examples.lengths, kind="stable")
    logits = [np.full((len(order), columns), NOWHERE, np.float32) for columns in outputs.values()]
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        for array, values in zip(logits, run(examples.batch(rows, targets=False)), strict=True):
            array[rows, : values.shape[1]] = values
    return logits


def write_onnx(model: nn.Module, outputs: Iterable[str], path: Path) -> None:
    """Write a model as ONNX: inputs input_ids, attention_mask and token_type_ids, int64 [batch, sequence]."""
    sample = {name: torch.ones(2, 8, dtype=torch.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    export(model.to("cpu"), sample, ("batch", "sequence"), list(outputs), path)


def finish(output: Path, results: Mapping[str, Any], apart: float) -> None:
    """Write eval_results.json: the command, versions and hardware, and what came out; exit with 1 upon a mistake.

    `apart` is the largest difference between the engines' logits.
    """
    about = versions("onnxruntime", "transformers", "tokenizers")
    about = {"command": command_line([Path(sys.argv[0]).name, *sys.argv[1:]]), **about, "cores": os.cpu_count()}
    write_json(output / "eval_results.json", {**about, **results})
    if not apart <= TOLERANCE:  # nor is a number that is none
        raise typer.Exit(1)
