"""Hooks that forward itself registers on parts of its module and leaves there, as transformers' models do once."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["InstalledHook"]


@dataclass(frozen=True, eq=False)
class InstalledHook:
    """One hook that forward registers.

    Attributes:
        table: the part's own, of hooks of a kind.
        number: under which it stands there.
        hook: what is called.
    """

    table: MutableMapping[int, Any]
    number: int
    hook: Any

    def put(self) -> None:
        """Register the hook again after a trace."""
        self.table[self.number] = self.hook

    def take_back(self) -> None:
        """Leave the part as it was before forward."""
        self.table.pop(self.number, None)

    @property
    def is_lasting(self) -> bool:
        """Whether the hook is the same in eager PyTorch: it holds no tensor of the trace."""
        cells = getattr(self.hook, "__closure__", None) or ()
        return not any(isinstance(cell.cell_contents, torch.Tensor) for cell in cells)
