"""Distances between rows."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder
from ontrain.operators import Value

__all__: list[str] = []


def _pair_types(inputs: list[Any]) -> list[tuple[ir.DataType, ir.Shape]]:
    a, b = inputs[:2]
    return [(a.dtype, ir.Shape([*_together(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-2]]))]


def _adjoint_types(inputs: list[Any]) -> list[tuple[ir.DataType, ir.Shape]]:
    _dy, a, b, _y = inputs
    return [(a.dtype, ir.Shape([*_together(a.shape[:-2], b.shape[:-2]), *a.shape[-2:]]))]


def _together(first: Any, second: Any) -> list[Any]:
    """The shape to which two shapes broadcast."""
    rank = max(len(first), len(second))
    pairs = zip(*([1] * (rank - len(shape)) + list(shape) for shape in (first, second)), strict=True)
    return [b if a == 1 else a for a, b in pairs]


@composite("Distances", infer=_pair_types)
def distances(op: Builder, a: Value, b: Value) -> Value:
    """The Euclidean distance of each row of a [..., P, M] from each of b [..., R, M]: [..., P, R].

    Source: torch.cdist with p=2.
    """
    return op.ReduceL2(op.Unsqueeze(a, [-2]) - op.Unsqueeze(b, [-3]), [-1], keepdims=0)


@composite("DistancesGrad", infer=_adjoint_types)
def distances_grad(op: Builder, dy: Value, a: Value, b: Value, y: Value) -> Value:
    """Adjoint of a from the distances y: Σ_r dy_r / y_r · (a − b_r), where equal rows count nothing."""
    apart = op.Not(op.Equal(y, 0.0))
    ratio = op.Where(apart, dy / op.Where(apart, y, 1.0), 0.0)
    terms = op.Unsqueeze(ratio, [-1]) * (op.Unsqueeze(a, [-2]) - op.Unsqueeze(b, [-3]))
    return op.ReduceSum(terms, [-2], keepdims=0)
