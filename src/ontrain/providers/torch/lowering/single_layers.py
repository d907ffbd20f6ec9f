"""Layers of halves that serve on a CPU, in single precision: kernels for halves take several times as long there.

    Conv(x: float16, w: float16)   →   Cast(Conv(Cast(x, float32), Cast(w, float32)), float16)

onnxruntime has no other kernels for them either. Weights are cast once for all plans of a session.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ontrain.graph import Builder
from ontrain.operators import record_of

__all__ = ["in_single", "is_of_halves"]

_HALF, _SINGLE = ir.DataType.FLOAT16, ir.DataType.FLOAT
Values = list[ir.Value | None]


def is_of_halves(node: ir.Node) -> bool:
    """Return whether a node is a layer that takes halves, and is better computed in single precision."""
    return record_of(node).single and _has_halves(node.inputs)


def in_single(op: Builder, node: ir.Node, inputs: Values) -> Values:
    """Return the results of a layer, each of its first type.

    Args:
        op: builds the graph.
        node: one for which `is_of_halves` holds.
        inputs: what it reads now.
    """
    wide = [op.Cast(v, to=_SINGLE) if v is not None and v.dtype == _HALF else v for v in inputs]
    copy = ir.Node(node.domain, node.op_type, wide, node.attributes.values(), num_outputs=len(node.outputs))
    results = op.add(copy)
    values = [results] if isinstance(results, ir.Value) else list(results)
    return [
        op.Cast(value, to=_HALF) if value is not None and before.dtype == _HALF else value
        for value, before in zip(values, node.outputs, strict=True)
    ]


def _has_halves(values: Iterable[ir.Value | None]) -> bool:
    return any(value is not None and value.dtype == _HALF for value in values)
