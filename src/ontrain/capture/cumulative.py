"""Batch normalisation with momentum=None: its running statistics are means over all batches, by a count in a buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

__all__ = ["cumulative_averages"]


def cumulative_averages(elsewhere: Callable[[], bool]) -> dict[str, Callable[[Any], Any]]:
    """Return what to make of torch's own batch normalisation, by name, during one trace.

    Args:
        elsewhere: whether the calling thread is another than the one that traces.
    """

    def normalising(own: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
            counts = self.training and self.track_running_stats and self.num_batches_tracked is not None
            return own(self, input) if elsewhere() or self.momentum is not None or not counts else _counted(self, input)

        return forward

    return {"torch.nn.modules.batchnorm._BatchNorm.forward": normalising}


def _counted(layer: Any, input: torch.Tensor) -> torch.Tensor:
    """torch's own turns the count into a number, which a trace cannot."""
    layer._check_input_dim(input)
    layer.num_batches_tracked.add_(1)
    mean, var = layer.running_mean.clone(), layer.running_var.clone()
    y = functional.batch_norm(input, mean, var, layer.weight, layer.bias, True, 1.0, layer.eps)
    for running, statistic in ((layer.running_mean, mean), (layer.running_var, var)):
        running.lerp_(statistic, 1 / layer.num_batches_tracked.to(running.dtype))
    return y
