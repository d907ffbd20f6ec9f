"""A mask that is the same for every sequence of a batch, kept once."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder, static_dims
from ontrain.operators import record_of
from ontrain.passes.attention_bias import bias_of, with_bias
from ontrain.passes.infra import RewritePass

__all__ = ["ShareMasks"]


class ShareMasks(RewritePass):
    """Add to scores one mask for all sequences and heads.

        q, k, v ─ Attention(bias [B, H, L, S] of constants)   →   q, k, v ─ Attention(bias [1, 1, L, S])

    Equal because a bias broadcasts to the scores, and operators on elements broadcast their operands: what all operands
    repeat, the result repeats. Models write a causal mask for each sequence. For 8 sequences of 1,024 tokens it is too
    large to be kept as a constant, and a kernel that knows causal masks does not know one that each step computes.
    Left alone: what depends on the batch or on parameters, and what differs between sequences.
    """

    def begin(self, graph: ir.Graph) -> None:
        """Forget the biases of other graphs."""
        self._narrow: dict[ir.Value, ir.Value] = {}

    def has_work(self, graph: ir.Graph) -> bool:
        """Whether an attention has a constant mask for each sequence or head."""
        return any(_wide_constant(node) is not None for node in graph)

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Give an attention the mask that all sequences share."""
        bias = _wide_constant(node)
        if bias is None:
            return None
        narrow = self._narrowed(op, bias)
        if static_dims(narrow) == static_dims(bias):
            return None
        return with_bias(op, node, inputs, narrow)

    def _narrowed(self, op: Builder, value: ir.Value) -> ir.Value:
        """Emit a constant, or elementwise operators on constants, once for all that repeats."""
        if value not in self._narrow:
            node = value.producer()
            if value.const_value is not None or node is None:
                assert value.const_value is not None
                self._narrow[value] = op.const(_once(value.const_value.numpy()), value.dtype)
            elif _expands(node):
                assert node.inputs[0] is not None
                dims = static_dims(value)
                self._narrow[value] = op.Expand(
                    self._narrowed(op, node.inputs[0]), [*[1] * (len(dims) - 2), *dims[-2:]]
                )
            else:
                operands = [None if v is None else self._narrowed(op, v) for v in node.inputs]
                copy = ir.Node(node.domain, node.op_type, operands, list(node.attributes.values()))
                result = op.add(copy)
                assert isinstance(result, ir.Value)
                self._narrow[value] = result
        return self._narrow[value]


def _wide_constant(node: ir.Node) -> ir.Value | None:
    """What an attention adds to its scores, if it is made of constants and wider than one mask."""
    bias = bias_of(node)
    if bias is None or len(static_dims(bias)) != 4 or max(static_dims(bias)[:2]) == 1:
        return None
    return bias if _is_constant(bias) else None


def _is_constant(value: ir.Value) -> bool:
    """Whether operators on elements make it of constants, which may be expanded."""
    node = value.producer()
    if value.const_value is not None or node is None:
        return value.const_value is not None
    if not (record_of(node).elementwise or _expands(node)) or len(node.outputs) != 1:
        return False
    return all(_is_constant(v) for v in node.inputs if v is not None)


def _expands(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == ("", "Expand")


def _once(array: np.ndarray) -> np.ndarray:
    """One of all sequences, and one of all heads, where they are alike."""
    for axis in range(array.ndim - 2):
        first = array.take([0], axis)
        if array.shape[axis] > 1 and bool((array == first).all()):
            array = first
    return array
