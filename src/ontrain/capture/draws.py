"""What is certain of random numbers before they are drawn: between which bounds they, and what follows from them, lie.

torch.rand(1) < 0.0       →  never
int(torch.rand(1) * 1)    →  0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from ontrain.internals import OpOverload, of

__all__ = ["Bounds", "bounds"]

Bounds = tuple[float, float]
"""The least and the greatest number that the elements of a tensor may be."""

_CARRIED = frozenset({
    "item", "_local_scalar_dense", "view", "reshape", "select", "squeeze", "unsqueeze", "clone", "to", "_to_copy",
    "detach", "alias", "expand", "slice", "flatten", "contiguous", "permute", "transpose", "decide",
})  # fmt: skip
"""Operators whose elements are those of their first argument."""


def bounds(node: Any, values: Mapping[fx.Node, Any]) -> Bounds | None:
    """Return the bounds of a number or a tensor that follows from uniform draws and from constants, or None.

    A draw lies strictly between its ends. That it is the lower one happens once in 2²⁴ times, and is passed by.

    Args:
        node: of a program, or a number.
        values: of its nodes in one run.
    """
    if isinstance(node, bool | int | float):
        return float(node), float(node)
    if not isinstance(node, fx.Node):
        return None
    if not isinstance(node.target, OpOverload):
        return _of_constant(values.get(node)) if node.op == "get_attr" else None
    name = str(of("torch._ops.OpOverload._schema", node.target).name).partition("::")[2].removesuffix("_")
    if name in _CARRIED:
        return bounds(node.args[0], values)
    if name in ("rand", "rand_like"):
        return _drawn(node, 0.0, 1.0)
    if name == "uniform":
        ends: list[Any] = [*node.args[1:], *(0.0, 1.0)[len(node.args) - 1 :]]
        return _drawn(node, *ends)
    if name not in _FUNCTIONS or len(node.args) != 2 or node.kwargs:
        return None
    first, second = (bounds(argument, values) for argument in node.args)
    if first is None or second is None:
        return None
    low, high = _FUNCTIONS[name](first, second)
    kind = node.meta["val"].dtype
    rounding = torch.finfo(kind).eps * max(abs(low), abs(high)) if kind.is_floating_point else 0.0
    return low - rounding, high + rounding


def _drawn(node: fx.Node, low: Any, high: Any) -> Bounds | None:
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return None
    step = torch.finfo(node.meta["val"].dtype).eps / 2 * (high - low)
    return low + step, high - step


def _of_constant(value: Any) -> Bounds | None:
    if not isinstance(value, torch.Tensor) or not value.numel() or value.is_complex():
        return None
    return float(value.min()), float(value.max())


def _sum(a: Bounds, b: Bounds) -> Bounds:
    return a[0] + b[0], a[1] + b[1]


def _product(a: Bounds, b: Bounds) -> Bounds:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _less(a: Bounds, b: Bounds) -> Bounds:
    return float(a[1] < b[0]), float(a[0] < b[1])


def _less_or_equal(a: Bounds, b: Bounds) -> Bounds:
    return float(a[1] <= b[0]), float(a[0] <= b[1])


def _equal(a: Bounds, b: Bounds) -> Bounds:
    return float(a == b and a[0] == a[1]), float(a[0] <= b[1] and b[0] <= a[1])


def _unequal(a: Bounds, b: Bounds) -> Bounds:
    low, high = _equal(a, b)
    return 1 - high, 1 - low


_FUNCTIONS: Mapping[str, Callable[[Bounds, Bounds], Bounds]] = {
    "add": _sum,
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "lt": _less,
    "le": _less_or_equal,
    "gt": lambda a, b: _less(b, a),
    "eq": _equal,
    "ne": _unequal,
    "ge": lambda a, b: _less_or_equal(b, a),
}
