"""The verdict on a model: its gradients through ontrain beside eager PyTorch's, from equal weights and batches."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ontrain.capture import Captured, capture
from ontrain.errors import OntrainError
from ontrain.training.ortmodule import ORTModule
from tests.models.gradients import eager_gradients, run_gradients
from tests.models.zoo.entry import FIRST, OTHER, Batch, Entry, varying

__all__ = ["Verdict", "judge", "judge_module", "prepared"]


@dataclass(frozen=True)
class Verdict:
    """What came of a model.

    Attributes:
        parameters: numbers that train.
        operators: nodes of the captured forward graph; 0 where there are several graphs.
        error: largest relative error of a gradient, over all parameters and both batches.
        loss_error: the same for the loss.
        specialised: dimensions that differ between batches and that the model fixes.
        refusal: the error that the user gets in place of a graph.
    """

    parameters: int
    operators: int = 0
    error: float = math.nan
    loss_error: float = math.nan
    specialised: tuple[str, ...] = ()
    refusal: OntrainError | None = None

    def expect_eagers(self) -> None:
        """Raise unless the model was captured, and its loss and gradients are eager PyTorch's."""
        if self.refusal is not None:
            raise self.refusal
        assert self.error <= 1e-5
        assert self.loss_error <= 1e-6


class _Loss(nn.Module):
    """A module as a function of named tensors to its loss."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        result = self.module(**batch)
        loss: torch.Tensor = result if isinstance(result, torch.Tensor) else result.loss
        return loss


def prepared(entry: Entry) -> nn.Module:
    """Return the entry's module as a function to its loss: in its precision, training mode, no weight at rest."""
    torch.manual_seed(7)
    module = _Loss(entry.make()).to(entry.dtype).train()
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
    with torch.no_grad():
        for parameter in module.parameters():
            # Small initial weights leave queries and keys without a signal, zeros hide whole branches.
            parameter.mul_(3.0 if parameter.ndim > 1 and parameter.std() < 0.1 else 1.0)
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


def judge(entry: Entry, provider: str = "TorchExecutionProvider", device: str = "cpu") -> Verdict:
    """Capture a model once and compare loss and gradients at two sizes with eager PyTorch's on the same device."""
    module = prepared(entry).to(device)
    count = _trained_numbers(module)
    dynamic = varying(entry)
    batches = [_batch(entry, sizes, device) for sizes in (FIRST, OTHER)]
    try:
        captured = capture(module, (), batches[0], dynamic=dynamic)
        errors = [
            _errors(captured, module, batch, provider, device) for batch in batches[: 1 if captured.specialised else 2]
        ]
    except OntrainError as refusal:
        return Verdict(count, refusal=refusal)
    error, loss_error = (max(column) for column in zip(*errors, strict=True))
    return Verdict(count, len(captured.model.graph), error, loss_error, tuple(captured.specialised))


def judge_module(entry: Entry, device: str = "cpu") -> Verdict:
    """Wrap a model in ORTModule and compare loss and gradients at two sizes with eager PyTorch's on the same device."""
    module = prepared(entry).to(device)
    wrapped = ORTModule(copy.deepcopy(module))
    error = loss_error = 0.0
    for sizes in (FIRST, OTHER):
        batch = _batch(entry, sizes, device)
        wanted_loss, wanted = eager_gradients(module, batch)
        try:
            loss, grads = eager_gradients(wrapped, batch)
        except OntrainError as refusal:
            return Verdict(_trained_numbers(module), refusal=refusal)
        error = max(error, relative_error(grads, wanted))
        loss_error = max(loss_error, abs(loss - wanted_loss) / abs(wanted_loss))
    return Verdict(_trained_numbers(module), error=error, loss_error=loss_error)


def _trained_numbers(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def _batch(entry: Entry, sizes: tuple[int, int], device: str) -> Batch:
    return {
        name: tensor.to(device, entry.dtype) if tensor.is_floating_point() else tensor.to(device)
        for name, tensor in entry.batch(*sizes).items()
    }


def _errors(captured: Captured, module: nn.Module, batch: Batch, provider: str, device: str) -> tuple[float, float]:
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    loss, grads = run_gradients(captured, list(batch.values()), provider, device)
    own = dict(module.named_buffers())
    for name, buffer in before.items():
        own[name].copy_(buffer)
    wanted_loss, wanted = eager_gradients(module, batch)
    return relative_error(grads, wanted), abs(loss - wanted_loss) / abs(wanted_loss)


def relative_error(gradients: dict[str, torch.Tensor], wanted: dict[str, Any]) -> float:
    """Return the largest error of a gradient, relative to its norm; 45 roundings of the largest norm are left out.

    Where the true gradient is zero (a key's bias, a bias before a normalisation) rounding is all there is.
    """
    wanted = {name: gradient for name, gradient in wanted.items() if name in gradients or bool(gradient.any())}
    assert gradients.keys() == wanted.keys(), gradients.keys() ^ wanted.keys()
    largest = max(float(gradient.norm()) for gradient in wanted.values())
    floor = 45 * max(torch.finfo(grad.dtype).eps for grad in wanted.values()) * largest
    worst = 0.0
    for name, grad in wanted.items():
        error = float((gradients[name] - grad).norm())
        assert math.isfinite(error), f"the gradient of {name} is not finite"
        if error > floor:
            worst = max(worst, (error - floor) / (float(grad.norm()) + 1e-300))
    return worst
