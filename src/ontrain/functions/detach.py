"""Values that take no gradient, or that of another value."""

from __future__ import annotations

from ontrain.functions.registry import composite
from ontrain.graph import Builder
from ontrain.operators import Value

__all__: list[str] = []


@composite("Detach", like=[0])
def detach(op: Builder, x: Value) -> Value:
    """x itself; nothing flows back through it (torch.Tensor.detach)."""
    return op.Identity(x)


@composite("ConstantIn", like=[0])
def constant_in(op: Builder, y: Value, *xs: Value) -> Value:
    """y, whose derivative by each x is zero: what autograd records of a tensor that is filled, or drawn by x."""
    return op.Identity(y)


@composite("Revalued", like=[0])
def revalued(op: Builder, x: Value, new: Value) -> Value:
    """new, as which x reads after a write through x.detach(): what flows back goes to x."""
    return op.Identity(new)
