"""Attention that a file spells out, as one operator again."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder, is_float, static_dims
from ontrain.passes.inference.makers import is_private, maker_of, number_of, permutation_of
from ontrain.passes.inference.weights import Weights
from ontrain.passes.infra import RewritePass, left_alone

__all__ = ["FuseAttention"]

_TURN = [0, 1, 3, 2]
_NO_WEIGHTS = Weights({})


@dataclass
class _Match:
    """An attention: operands of the old graph.

    Attributes:
        keys: transposed, [B, H, E, S].
        bias: added to scores, or None.
        scale: what scores are multiplied by.
        guarded: whether a probability that is no number becomes zero.
    """

    queries: ir.Value
    keys: ir.Value
    values: ir.Value
    bias: ir.Value | None
    scale: float
    guarded: bool


class FuseAttention(RewritePass):
    """Turn the formula of attention, and the standard's operator, into the composite, in graphs for inference.

        MatMul(Softmax(MatMul(q, kᵀ) · scale + bias), v)   →   Attention(q, k, v, bias, scale)

    The scale may be a quotient, or stand before the product, at q and kᵀ. Where the file puts zeros for probabilities
    that are no numbers, rows that see no key are multiplied by zero. Equal but for the rounding of the scale. It pays
    because one kernel keeps no scores, and because the passes over rows know what a mask hides from an attention.
    Left alone: other ranks than four, batches or heads that broadcast, and probabilities that others read.
    """

    level = 2
    serves = True

    def begin(self, graph: ir.Graph) -> None:
        """Find the last node of each formula."""
        self._matches: dict[ir.Node, _Match] = {}
        self._new: dict[ir.Value, ir.Value] = {}
        for node in graph:
            match = _match(node)
            if match is not None:
                self._matches[node] = match
        self._wanted = {
            v for m in self._matches.values() for v in (m.queries, m.keys, m.values, m.bias) if v is not None
        }  # fmt: skip
        self._shared: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}

    def has_work(self, graph: ir.Graph) -> bool:
        """Whether there is a formula, or the standard's operator."""
        return bool(self._matches) or any(node.op_type == "Attention" and not node.domain for node in graph)

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Replace the end of a formula; the rest of it goes, as nobody reads it."""
        for old, new in zip(node.inputs, inputs, strict=True):
            if old in self._wanted and new is not None:
                self._new[old] = new
        match = self._matches.get(node)
        if match is None:
            return _of_standard(op, node, inputs)
        (q, q_scale), (turned, k_scale) = _unscaled(self._new[match.queries]), _unscaled(self._new[match.keys])
        bias, seen = None if match.bias is None else self._new[match.bias], None
        if bias is not None and match.guarded and not _is_finite(bias):
            if bias not in self._shared:
                self._shared[bias] = _limited(op, bias)
            bias, seen = self._shared[bias]
        v = self._new[match.values]
        y, _, _ = op.composite(
            "Attention",
            q,
            _turned(op, turned),
            v,
            _with_axes(op, bias),
            scale=match.scale * q_scale * k_scale,
            outputs=3,
        )
        return [y if seen is None else op.Mul(y, seen)]


def _match(last: ir.Node) -> _Match | None:
    """The attention that a product of probabilities and values ends, if it does."""
    if last.domain or last.op_type != "MatMul":
        return None
    probabilities, values = last.inputs
    softmax, inner = _softmax(probabilities)
    if softmax is None or values is None or softmax.inputs[0] is None:
        return None
    rank = len(static_dims(softmax.outputs[0]))
    if softmax.attributes.get_int("axis", -1) not in (-1, rank - 1):
        return None
    scores = softmax.inputs[0]
    total = maker_of(scores, "Add")
    for product, bias in [(scores, None)] if total is None else [tuple(total.inputs), tuple(total.inputs[::-1])]:
        path = _product(product)
        if path is None:
            continue
        matmul, scale, scaling = path
        q, k = matmul.inputs
        nodes = [softmax, *inner, matmul, *scaling, *([] if total is None else [total])]
        if q is None or k is None or not _fits(q, k, values, bias):
            left_alone("it is of another rank, or batches or heads broadcast")
        elif not is_private(nodes, last):
            left_alone("scores or probabilities are read elsewhere")
        else:
            return _Match(q, k, values, bias, scale, guarded=bool(inner))
    return None


def _softmax(value: ir.Value | None) -> tuple[ir.Node | None, list[ir.Node]]:
    """The Softmax that makes probabilities, and the nodes that put zeros for what is no number."""
    softmax = maker_of(value, "Softmax")
    choice = maker_of(value, "Where")
    if softmax is not None or choice is None:
        return softmax, []
    condition, zero, probabilities = choice.inputs
    test = maker_of(condition, "IsNaN")
    if test is None or test.inputs[0] is not probabilities or number_of(zero, _NO_WEIGHTS) != 0:
        return None, []
    return maker_of(probabilities, "Softmax"), [choice, test]


def _product(value: ir.Value | None) -> tuple[ir.Node, float, list[ir.Node]] | None:
    """The product behind scores, what it is multiplied by, and the nodes that do."""
    scale, scaling = 1.0, list[ir.Node]()
    while value is not None:
        node = value.producer()
        factor = None if node is None else _factor(node)
        if node is None or factor is None:
            break
        value, number = factor
        scale, scaling = scale * number, [*scaling, node]
    matmul = maker_of(value, "MatMul")
    return None if matmul is None else (matmul, scale, scaling)


def _factor(node: ir.Node) -> tuple[ir.Value, float] | None:
    """What a node multiplies by one number, and the number."""
    if node.domain or node.op_type not in ("Mul", "Div"):
        return None
    x, y = node.inputs
    for value, other in ((x, y), (y, x)) if node.op_type == "Mul" else ((x, y),):
        number = number_of(other, _NO_WEIGHTS)
        if number is None or value is None or static_dims(value) != static_dims(node.outputs[0]):
            continue
        return value, number if node.op_type == "Mul" else 1 / number
    return None


def _unscaled(value: ir.Value) -> tuple[ir.Value, float]:
    """An operand before it was multiplied by a number, and the number."""
    node = value.producer()
    factor = None if node is None else _factor(node)
    return (value, 1.0) if factor is None else factor


def _turned(op: Builder, keys: ir.Value) -> ir.Value:
    """Keys [B, H, S, E] of transposed ones, [B, H, E, S]; what transposed them is left out."""
    node = maker_of(keys, "Transpose")
    perm = permutation_of(node) if node is not None else None
    if node is not None and perm is not None and node.inputs[0] is not None:
        back = [perm[axis] for axis in _TURN]
        return node.inputs[0] if back == [0, 1, 2, 3] else op.Transpose(node.inputs[0], perm=back)
    # Batch and heads as one axis, as onnxscript's torch library writes it.
    outer = maker_of(keys, "Reshape")
    turn = maker_of(outer.inputs[0], "Transpose") if outer is not None else None
    inner = maker_of(turn.inputs[0], "Reshape") if turn is not None else None
    source = inner.inputs[0] if inner is not None else None
    if turn is not None and inner is not None and source is not None and permutation_of(turn) == [0, 2, 1]:
        batch, heads, width, length = static_dims(keys)
        if static_dims(source) == (batch, heads, length, width):
            flat = static_dims(inner.outputs[0])
            if flat == (batch * heads, length, width):
                return source
    return op.Transpose(keys, perm=_TURN)


def _fits(q: ir.Value, k: ir.Value, v: ir.Value, bias: ir.Value | None) -> bool:
    shapes = [static_dims(value) for value in (q, k, v)]
    if any(len(shape) != 4 for shape in shapes) or len({shape[:2] for shape in shapes}) > 1 or not is_float(q):
        return False
    if bias is None:
        return True
    scores = (*shapes[0][:3], shapes[1][3])
    dims = static_dims(bias)
    return len(dims) <= 4 and all(d in (1, s) for d, s in zip(dims[::-1], scores[::-1], strict=False))


def _is_finite(bias: ir.Value) -> bool:
    """Whether no row is hidden by minus infinity: it is a choice of finite constants."""
    choice = maker_of(bias, "Where")
    constants = [bias] if choice is None else list(choice.inputs[1:])
    return all(
        v is not None and v.const_value is not None and np.isfinite(v.const_value.numpy()).all() for v in constants
    )


def _limited(op: Builder, bias: ir.Value) -> tuple[ir.Value, ir.Value]:
    """A bias without infinities, and 1 or 0 for each row that sees a key or none."""
    lowest = -3e4 if bias.dtype == ir.DataType.FLOAT16 else -1e30
    best = op.ReduceMax(bias, np.array([-1]), keepdims=1)
    seen = op.Cast(op.Greater(best, op.const(-np.inf, bias.dtype)), to=bias.dtype)
    return op.Max(bias, op.const(lowest, bias.dtype)), seen


def _with_axes(op: Builder, bias: ir.Value | None) -> ir.Value | None:
    """A bias of two or four axes: kernels take no others."""
    if bias is None or len(static_dims(bias)) in (2, 4):
        return bias
    dims = static_dims(bias)
    wide: ir.Value = op.Reshape(bias, [1] * (4 - len(dims)) + list(dims))
    return wide


# The standard's operator.

_PLAIN = frozenset({"kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale"})
"""Attributes that the composite expresses; any other has to be zero."""


def _additive(op: Builder, mask: ir.Value | None, q: ir.Value) -> tuple[ir.Value | None, ir.Value | None]:
    """A mask as finite summands of the scores, and 0 for each row of q that sees no key; None where there is none."""
    dtype = q.dtype
    assert dtype is not None
    if mask is not None and mask.dtype == ir.DataType.BOOL:
        seen = op.ReduceMax(op.Cast(mask, to=dtype), np.array([-1]), keepdims=1)
        return op.Where(mask, op.const(0.0, dtype), op.const(-1e30, dtype)), seen
    if mask is not None and not _is_finite(mask):
        return _limited(op, mask)
    return mask, None


def _of_standard(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
    """The composite for an Attention of the standard that has as many keys' heads as queries', and no past."""
    if node.domain or node.op_type != "Attention" or len(node.outputs) != 1 or len(inputs) > 4:
        return None
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    if any(value for name, value in attributes.items() if name not in _PLAIN):
        return None
    q, k, v = inputs[:3]
    mask = inputs[3] if len(inputs) > 3 else None
    assert q is not None and k is not None and v is not None
    if q.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return None  # the operator says where halves are rounded
    rank = len(static_dims(q))
    if rank == 3:
        heads = attributes["q_num_heads"]
        if attributes["kv_num_heads"] != heads:
            return None
        q, k, v = (_by_heads(op, value, heads) for value in (q, k, v))
    turned = op.Transpose(k, perm=_TURN)
    if not _fits(q, turned, v, mask):
        left_alone("it is of another rank, or batches or heads broadcast")
        return None
    mask, seen = _additive(op, mask, q)
    scale = attributes.get("scale") or 1 / math.sqrt(static_dims(q)[-1])
    y, _, _ = op.composite("Attention", q, k, v, _with_axes(op, mask), scale=float(scale), outputs=3)
    if seen is not None:
        y = op.Mul(y, seen)  # a row that sees no key is zeros
    if rank == 4:
        return [y]
    batch, heads, length, width = static_dims(y)
    return [op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [batch, length, heads * width])]


def _by_heads(op: Builder, value: ir.Value, heads: int) -> ir.Value:
    """[B, L, H · E] as [B, H, L, E]."""
    batch, length, width = static_dims(value)
    apart: ir.Value = op.Transpose(op.Reshape(value, [batch, length, heads, width // heads]), perm=[0, 2, 1, 3])
    return apart
