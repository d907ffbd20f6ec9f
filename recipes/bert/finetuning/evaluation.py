"""A trained model's logits twice: in PyTorch, and of its ONNX file in stock onnxruntime; and how far they agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from finetuning.examples import Examples
from ontrain import InferenceSession
from ontrain.capture import capture
from ontrain.session.export import inference_model, save_model

__all__ = ["INPUTS", "NOWHERE", "TOLERANCE", "distance", "export", "logits_of_onnx", "logits_of_torch"]

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
NOWHERE = float(np.finfo(np.float32).min)
"""Stands for the logit of a place beyond the batch that the row was in."""
TOLERANCE = 1e-3
"""Logits of the two engines that are farther apart are a mistake, not rounding."""

Logits = list[NDArray[np.float32]]


def logits_of_torch(
    model: nn.Module, examples: Examples, outputs: Mapping[str, int], batch_size: int, device: torch.device
) -> Logits:
    """Run the model in eager PyTorch, in evaluation mode.

    Args:
        model: returns its outputs by name.
        examples: N of them, of at most L tokens.
        outputs: those wanted by name, with their columns: L, or a number of classes.
        batch_size: rows at a time.
        device: of the computation.

    Returns:
        Each output for all examples, [N, columns]; NOWHERE beyond the length of the batch.
    """
    model.to(device).eval()

    @torch.no_grad()
    def run(batch: dict[str, Tensor]) -> Sequence[NDArray[np.float32]]:
        made = model(**{name: tensor.to(device) for name, tensor in batch.items()})
        return [made[name].float().cpu().numpy() for name in outputs]

    return _logits(examples, batch_size, outputs, run)


def logits_of_onnx(path: Path, examples: Examples, outputs: Mapping[str, int], batch_size: int) -> Logits:
    """Run an exported model in stock onnxruntime on the CPU; see `logits_of_torch`."""
    session, names = InferenceSession(path), list(outputs)

    def run(batch: dict[str, Tensor]) -> Sequence[NDArray[np.float32]]:
        return session.run(names, {name: tensor.numpy() for name, tensor in batch.items()})

    return _logits(examples, batch_size, outputs, run)


def export(model: nn.Module, outputs: Sequence[str], path: Path) -> None:
    """Write a model as ONNX: inputs input_ids, attention_mask and token_type_ids, int64 [batch, sequence].

    Raises:
        CaptureError: the model cannot be captured.
        OptionError: the file cannot be written.
    """
    model.to("cpu").eval()
    sample = {name: torch.ones(2, 8, dtype=torch.int64) for name in INPUTS}
    dims = {0: "batch", 1: "sequence"}
    captured = capture(model, kwargs=sample, dynamic=[dims] * len(INPUTS), output_names=outputs)
    tensors = {**captured.parameters, **captured.buffers}
    arrays = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    save_model(inference_model(captured.model, arrays, outputs), path)


def distance(one: Logits, other: Logits) -> float:
    """Return the largest difference between two engines' logits."""
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


def _logits(
    examples: Examples,
    batch_size: int,
    outputs: Mapping[str, int],
    run: Callable[[dict[str, Tensor]], Sequence[NDArray[np.float32]]],
) -> Logits:
    """Rows of like length run together; where they came from is where they go to."""
    order = np.argsort(examples.lengths, kind="stable")
    made = [np.full((len(order), columns), NOWHERE, np.float32) for columns in outputs.values()]
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        for array, values in zip(made, run(examples.batch(rows, targets=False)), strict=True):
            array[rows, : values.shape[1]] = values
    return made
