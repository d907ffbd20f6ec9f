"""A value that takes no gradient."""

from __future__ import annotations

from typing import Any

from ontrain.functions.registry import composite

__all__: list[str] = []


@composite("Detach", like=[0])
def detach(op: Any, x: Any) -> Any:
    """x itself; nothing flows back through it (torch.Tensor.detach)."""
    return op.Identity(x)
