"""A value that takes no gradient."""

from __future__ import annotations

from ontrain.functions.registry import composite
from ontrain.graph import Builder
from ontrain.operators import Value

__all__: list[str] = []


@composite("Detach", like=[0])
def detach(op: Builder, x: Value) -> Value:
    """x itself; nothing flows back through it (torch.Tensor.detach)."""
    return op.Identity(x)
