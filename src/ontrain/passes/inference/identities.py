"""Operators that do nothing, in graphs whose sizes are open."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder
from ontrain.operators import each
from ontrain.passes.inference.makers import axes_of, maker_of, permutation_of
from ontrain.passes.infra import RewritePass

__all__ = ["RemoveIdentities"]


class RemoveIdentities(RewritePass):
    """Remove operators that do nothing and merge pairs that do one thing, whatever the sizes are.

        x + 0, x · 1, x and true, Identity(x)      →  x
        Reshape, Expand to the shape that x has    →  x
        Reshape(Reshape(x), s), s without zeros    →  Reshape(x, s)
        Transpose(Transpose(x))                    →  Transpose(x), or x
        Unsqueeze(Unsqueeze(x))                    →  Unsqueeze(x)
        Concat of one value                        →  the value
        results of LayerNormalization that nobody reads are not asked for

    Equal because sizes of one name are equal, and none of these changes a number.
    """

    tidies = looks_first = True

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Apply the first identity that fits."""
        if node.domain:
            return None
        if node.op_type == "LayerNormalization":
            return _without_moments(op, node, inputs)
        if len(node.outputs) != 1:
            return None
        rule = getattr(self, f"_{node.op_type.lower()}", None)
        value = rule(op, node, inputs) if rule is not None else None
        return None if value is None else [value]

    def _add(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Any:
        x, y = inputs
        return _beside(x, y, 0) or _beside(y, x, 0)

    def _mul(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Any:
        x, y = inputs
        return _beside(x, y, 1) or _beside(y, x, 1)

    def _sub(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Any:
        x, y = inputs
        return _beside(x, y, 0)

    def _div(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Any:
        x, y = inputs
        return _beside(x, y, 1)

    _or, _and, _pow = _add, _mul, _div

    def _identity(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Any:
        return inputs[0]

    def _concat(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Any:
        return inputs[0] if len(inputs) == 1 else None

    def _expand(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Any:
        return inputs[0] if _same_shape(inputs[0], node.outputs[0]) else None

    def _reshape(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Any:
        x, shape = inputs
        if _same_shape(x, node.outputs[0]):
            return x
        inner = maker_of(x, "Reshape")
        if inner is None or shape is None or shape.const_value is None or 0 in shape.const_value.numpy():
            return None
        return op.Reshape(inner.inputs[0], shape)

    def _transpose(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Any:
        x = inputs[0]
        perm = permutation_of(node)
        if perm is None:
            return None
        if perm == list(range(len(perm))):
            return x
        inner = maker_of(x, "Transpose")
        before = permutation_of(inner) if inner is not None else None
        if inner is None or before is None:
            return None
        both = [before[axis] for axis in perm]
        return inner.inputs[0] if both == list(range(len(both))) else op.Transpose(inner.inputs[0], perm=both)

    def _unsqueeze(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Any:
        inner = maker_of(inputs[0], "Unsqueeze")
        if inner is None or inner.inputs[0] is None or inner.inputs[0].shape is None:
            return None
        first, second = axes_of(inner), axes_of(node)
        if first is None or second is None:
            return None
        rank = len(inner.inputs[0].shape)
        between, after = rank + len(first), rank + len(first) + len(second)
        last = sorted(axis % after for axis in second)
        old = [axis for axis in range(after) if axis not in last]
        merged = sorted([*last, *(old[axis % between] for axis in first)])
        return op.Unsqueeze(inner.inputs[0], np.array(merged, np.int64))


def _without_moments(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
    moments = node.outputs[1:]
    if not moments or any(value.uses() or value.is_graph_output() for value in moments):
        return None
    copy = ir.Node("", node.op_type, inputs, node.attributes.values(), num_outputs=1)
    return [*each(op.add(copy, [node.outputs[0].name])), *[None] * len(moments)]


def _beside(value: ir.Value | None, number: ir.Value | None, neutral: float) -> ir.Value | None:
    """The operand beside a constant, if the constant changes neither its numbers nor its shape."""
    if value is None or number is None or number.const_value is None or value.shape is None:
        return None
    array = np.asarray(number.const_value.numpy())
    is_neutral = array.size == 1 and array.ndim <= len(value.shape) and bool(array.reshape(()) == neutral)
    return value if is_neutral else None


def _same_shape(x: ir.Value | None, y: ir.Value) -> bool:
    """Whether two values have one shape, by numbers and names."""
    if x is None or x.shape is None or y.shape is None or len(x.shape) != len(y.shape):
        return False
    sizes = [d if isinstance(d, int) else d.value for d in x.shape]
    return None not in sizes and sizes == [d if isinstance(d, int) else d.value for d in y.shape]
