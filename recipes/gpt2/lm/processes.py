"""What the recipe itself adds up over several processes; the gradients of `ORTTrainer` are its own affair."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from ontrain.distributed import Processes

__all__ = ["join", "mean", "sum_"]


def join(processes: Processes, device: str) -> None:
    """Meet the other processes, where there are any."""
    if processes.world_size > 1 and not dist.is_initialized():
        os.environ.update(processes.environment())
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")


def sum_(tensor: torch.Tensor) -> torch.Tensor:
    """Add up a tensor over all processes, in place."""
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def mean(value: float, processes: Processes, device: str) -> float:
    """Return the mean over all processes."""
    if processes.world_size == 1:
        return value
    return sum_(torch.tensor(value, dtype=torch.float64, device=device)).item() / processes.world_size
