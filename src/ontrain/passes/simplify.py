"""Local identities that save a pass over memory."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder, static_dims
from ontrain.passes.infra import RewritePass

__all__ = ["Simplify"]


class Simplify(RewritePass):
    """Remove operators that do nothing and merge pairs that do one thing.

        x + 0, x · 1, x / 1            →  x               (where the shape stays)
        Identity(x), Cast to its dtype →  x               (CastLike too)
        Reshape, Expand to its shape   →  x
        Reshape(Reshape(x))            →  Reshape(x)
        Transpose(Transpose(x))        →  Transpose(x), or x
        Where(all true, x, y)          →  x
        Clip or Max with a bound that a constant already keeps is folded by the builder

    Equal to the last bit: none of these changes a number.
    """

    looks_first = True

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Apply the first identity that fits."""
        if node.domain or len(node.outputs) != 1:
            return None
        shape = static_dims(node.outputs[0])
        rule = getattr(self, f"_{node.op_type.lower()}", None)
        replacement = rule(op, node, inputs, shape) if rule is not None else None
        return None if replacement is None else [replacement]

    def _add(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None], shape: tuple[int, ...]) -> object:
        return _neutral(inputs, 0.0, shape)

    def _mul(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None], shape: tuple[int, ...]) -> object:
        return _neutral(inputs, 1.0, shape)

    def _sub(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None], shape: tuple[int, ...]) -> object:
        return _neutral([None, inputs[1]], 0.0, shape, inputs[0])

    def _div(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None], shape: tuple[int, ...]) -> object:
        return _neutral([None, inputs[1]], 1.0, shape, inputs[0])

    def _identity(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None], shape: tuple[int, ...]) -> object:
        return inputs[0]

    def _castlike(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None], shape: tuple[int, ...]) -> object:
        x, like = inputs
        assert x is not None and like is not None
        return x if x.dtype is not None and x.dtype == like.dtype else None

    def _expand(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None], shape: tuple[int, ...]) -> object:
        x = inputs[0]
        return x if x is not None and static_dims(x) == shape else None

    def _reshape(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None], shape: tuple[int, ...]) -> object:
        x = inputs[0]
        assert x is not None
        if static_dims(x) == shape:
            return x
        producer = x.producer()
        if producer is not None and producer.op_type == "Reshape" and not producer.domain:
            return op.Reshape(producer.inputs[0], list(shape))
        return None

    def _transpose(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None], shape: tuple[int, ...]) -> object:
        x = inputs[0]
        assert x is not None
        perm = _perm(node, len(shape))
        if perm == list(range(len(shape))):
            return x
        producer = x.producer()
        if producer is None or producer.op_type != "Transpose" or producer.domain:
            return None
        inner = _perm(producer, len(shape))
        both = [inner[i] for i in perm]
        source = producer.inputs[0]
        return source if both == list(range(len(shape))) else op.Transpose(source, perm=both)

    def _where(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None], shape: tuple[int, ...]) -> object:
        condition, x = inputs[:2]
        assert condition is not None and x is not None
        const = condition.const_value
        if const is not None and static_dims(x) == shape and bool(const.numpy().all()):
            return x
        return None


def _perm(node: ir.Node, rank: int) -> list[int]:
    return list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else list(range(rank))[::-1]


def _neutral(
    inputs: list[ir.Value | None], neutral: float, shape: tuple[int, ...], fixed: ir.Value | None = None
) -> ir.Value | None:
    """Return the operand beside a constant that is `neutral` everywhere, if it has the result's shape."""
    x, y = inputs[0], inputs[1]
    for value, other in ((x, fixed or y), (y, fixed or x)):
        if value is None or other is None or value.const_value is None or static_dims(other) != shape:
            continue
        if bool(np.all(value.const_value.numpy() == neutral)):
            return other
    return None
