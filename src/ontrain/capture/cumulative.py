"""Batch normalisation with momentum=None: its running statistics are means over all batches, by a count in a buffer.

That of several processes is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

from ontrain.errors import CaptureError

__all__ = ["cumulative_averages"]


def cumulative_averages(elsewhere: Callable[[], bool]) -> dict[str, Callable[[Any], Any]]:
    """Return what to make of torch's own batch normalisation, by name, during one trace.

    Args:
        elsewhere: whether the calling thread is another than the one that traces.
    """

    def normalising(own: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
            if elsewhere():
                return own(self, input)
            _refuse_other_processes(self)
            counts = self.training and self.track_running_stats and self.num_batches_tracked is not None
            return own(self, input) if self.momentum is not None or not counts else _counted(self, input)

        return forward

    names = ("torch.nn.modules.batchnorm._BatchNorm.forward", "torch.nn.SyncBatchNorm.forward")
    return dict.fromkeys(names, normalising)


def _refuse_other_processes(layer: Any) -> None:
    if not isinstance(layer, nn.SyncBatchNorm) or not layer.training:
        return
    if (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size(layer.process_group) > 1
    ):
        raise CaptureError(
            "SyncBatchNorm normalises by the statistics of the batches of all processes",
            reason="a graph computes on the batch of one process",
            way_out="leave BatchNorm unconverted, whose statistics are each process's own, or normalise by GroupNorm",
        )


def _counted(layer: Any, input: torch.Tensor) -> torch.Tensor:
    """torch's own turns the count into a number, which a trace cannot."""
    layer._check_input_dim(input)
    layer.num_batches_tracked.add_(1)
    mean, var = layer.running_mean.clone(), layer.running_var.clone()
    y = functional.batch_norm(input, mean, var, layer.weight, layer.bias, True, 1.0, layer.eps)
    for running, statistic in ((layer.running_mean, mean), (layer.running_var, var)):
        running.lerp_(statistic, 1 / layer.num_batches_tracked.to(running.dtype))
    return y
