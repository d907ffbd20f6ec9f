"""Buffers that forward leaves with a gradient, through which eager PyTorch's backward leads from call to call.

self.hidden = torch.tanh(self.layer(x) + self.hidden)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from ontrain.internals import of

__all__ = ["AttachedBuffer", "attached_buffers"]


@dataclass(frozen=True)
class AttachedBuffer:
    """A buffer with a gradient at the end of forward.

    Attributes:
        module: the submodule.
        name: of the buffer there.
    """

    module: nn.Module
    name: str

    @property
    def buffer(self) -> torch.Tensor:
        """The module's own buffer."""
        buffer: torch.Tensor = getattr(self.module, self.name)
        return buffer


def attached_buffers(module: nn.Module) -> Iterator[AttachedBuffer]:
    """Yield the buffers of a module that autograd follows now."""
    for part in module.modules():
        for name, buffer in of("torch.nn.Module._buffers", part).items():
            if buffer is not None and buffer.requires_grad:
                yield AttachedBuffer(part, name)
