"""Halves that serve on a CPU are computed, and handed from node to node, in single precision.

    Gelu(MatMul(x: float16, w: float16))   →   Cast(Gelu(MatMul(Cast(x, float32), Cast(w, float32))), float16)

Processors have few kernels for halves: ATen's widen and round in each of them. onnxruntime carries single precision
likewise, so a result errs as little as its own. Weights are cast once for all plans of a session.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ontrain.graph import Builder, rebuild
from ontrain.operators import record_of

__all__ = ["carries_halves", "carry_single"]

_HALF, _SINGLE = ir.DataType.FLOAT16, ir.DataType.FLOAT
Values = list[ir.Value | None]


def carries_halves(model: ir.Model) -> bool:
    """Return whether a node of a model computes with halves."""
    return any(record_of(node).computes and _has_halves(node.inputs) for node in model.graph)


def carry_single(model: ir.Model) -> ir.Model:
    """Return a model with equal inputs and outputs that computes its halves in single precision.

    A value that the file casts to halves is rounded; so is each output. What only moves halves that nothing has
    computed, such as rows of a table, moves halves. Branches and loops hand halves in and out.
    """
    return rebuild(rebuild(model, _Widening().rewrite))  # once more without the casts that nobody reads


class _Widening:
    """What stands for halves in single precision, by the graph that they are in."""

    def __init__(self) -> None:
        self._single: dict[tuple[ir.Graph, ir.Value], ir.Value] = {}

    def rewrite(self, op: Builder, node: ir.Node, inputs: Values) -> Values | None:
        record = record_of(node)
        if record.control or not _has_halves(inputs):
            return None
        known = [self._single.get((op.graph, v)) if v is not None else None for v in inputs]
        if not record.computes and not any(known):
            return None
        if not node.domain and node.op_type == "Cast":
            widened = known[0] is not None and node.outputs[0].dtype == _SINGLE
            return [known[0]] if widened else None
        single = [self._widened(op, v) if v is not None and v.dtype == _HALF else v for v in inputs]
        copy = ir.Node(node.domain, node.op_type, single, node.attributes.values(), num_outputs=len(node.outputs))
        results = op.add(copy)
        values = [results] if isinstance(results, ir.Value) else list(results)
        return [self._narrowed(op, value, before) for value, before in zip(values, node.outputs, strict=True)]

    def _widened(self, op: Builder, half: ir.Value) -> ir.Value:
        if (op.graph, half) not in self._single:
            self._single[op.graph, half] = op.Cast(half, to=_SINGLE)
        return self._single[op.graph, half]

    def _narrowed(self, op: Builder, value: ir.Value | None, before: ir.Value) -> ir.Value | None:
        if value is None or value.dtype != _SINGLE or before.dtype != _HALF:
            return value
        half = op.Cast(value, to=_HALF)
        self._single[op.graph, half] = value
        return half


def _has_halves(values: Iterable[ir.Value | None]) -> bool:
    return any(value is not None and value.dtype == _HALF for value in values)
