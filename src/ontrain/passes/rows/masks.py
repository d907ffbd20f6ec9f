"""Which keys the queries of an attention may see, read off the mask that is added to its scores."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder, live_nodes, static_dims
from ontrain.passes.attention_bias import bias_of
from ontrain.passes.rows.selection import anywhere, batch_only

__all__ = ["Leaf", "Mask", "conditions", "find_mask", "is_low", "masked_attentions", "with_four_axes"]


@dataclass(frozen=True)
class Leaf:
    """One factor of a mask: a bool value, its negation, or a float value that is added to scores."""

    value: ir.Value
    kind: str

    def emit(self, op: Builder, copies: dict[ir.Value, ir.Value]) -> ir.Value:
        """Emit whether a key is visible as far as this factor goes, bool of four axes."""
        const = self.value.const_value
        value = op.const(const.numpy()) if const is not None else copies[self.value]
        if self.kind == "added":
            value = op.Greater(value, _low(value.dtype))
        elif self.kind == "not":
            value = op.Not(value)
        return with_four_axes(op, value)

    def acts(self, op: Builder, copies: dict[ir.Value, ir.Value]) -> ir.Value:
        """Emit whether it hides a key or adds something to a score, bool [1]."""
        value = copies[self.value]
        acts = op.Not(value) if self.kind == "is" else value
        if self.kind == "added":
            acts = op.Not(op.Equal(value, op.const(0.0, value.dtype)))
        return anywhere(op, acts)

    def acts_always(self) -> bool:
        """Whether it hides or adds something in every batch."""
        if self.value.const_value is None:
            return False
        array = np.asarray(self.value.const_value.numpy())
        return not array.all() if self.kind == "is" else bool((array != 0).any())


@dataclass(frozen=True)
class Mask:
    """The keys that queries may see: those that every leaf lets through, bool [B, H, L, S] by broadcasting."""

    leaves: tuple[Leaf, ...]

    @property
    def computed(self) -> frozenset[tuple[ir.Value, str]]:
        """The leaves that depend on the batch."""
        return frozenset((leaf.value, leaf.kind) for leaf in self.leaves if leaf.value.const_value is None)

    def acts(self, op: Builder, copies: dict[ir.Value, ir.Value]) -> ir.Value:
        """Emit whether the batch hides a key or adds something to a score, bool [1]."""
        computed = [leaf.acts(op, copies) for leaf in self.leaves if leaf.value.const_value is None]
        return functools.reduce(op.Or, computed)

    def acts_always(self) -> bool:
        """Whether in every batch some key is hidden from some query, or something is added to a score."""
        return any(leaf.acts_always() for leaf in self.leaves)

    def seen(self, op: Builder, copies: dict[ir.Value, ir.Value], shape: Sequence[int]) -> ir.Value:
        """Emit whether any query of any head sees a key, bool [B, S]."""
        seen = _any([leaf.emit(op, copies) for leaf in self.leaves], (1, 2), op)
        dims = static_dims(seen)
        expanded: ir.Value = op.Expand(op.Reshape(seen, [dims[0], dims[3]]), list(shape))
        return expanded

    def sees(self, op: Builder, copies: dict[ir.Value, ir.Value]) -> ir.Value:
        """Emit whether a query sees any key in every head, bool [B or 1, L or 1]."""
        seeing = _any([leaf.emit(op, copies) for leaf in self.leaves], (3,), op)
        if static_dims(seeing)[1] > 1:
            blind = op.ReduceMax(op.Cast(op.Not(seeing), to=ir.DataType.INT32), [1], keepdims=1)
            seeing = op.Equal(blind, 0)
        dims = static_dims(seeing)
        per_row: ir.Value = op.Reshape(seeing, [dims[0], dims[2]])
        return per_row


def masked_attentions(graph: ir.Graph) -> Iterator[tuple[ir.Node, Mask]]:
    """Yield the attentions that a graph's outputs need and whose masks depend on the batch, with these."""
    masks: dict[ir.Value, Mask | None] = {}
    for node in live_nodes(graph):
        bias = bias_of(node)
        if bias is None:
            continue
        if bias not in masks:
            masks[bias] = find_mask(graph, bias)
        mask = masks[bias]
        if mask is not None and mask.computed:
            yield node, mask


def with_four_axes(op: Builder, value: ir.Value) -> ir.Value:
    """Emit a value with axes in front, so that it broadcasts to scores axis by axis."""
    dims = static_dims(value)
    widened: ir.Value = op.Reshape(value, [1] * (4 - len(dims)) + list(dims)) if len(dims) < 4 else value
    return widened


def find_mask(graph: ir.Graph, bias: ir.Value) -> Mask | None:
    """Return what the values added to an attention's scores hide; None if the batch does not determine it.

    A key is hidden where a constant so low is chosen that nothing is left of its weight. A bias that depends on
    parameters, as T5's of relative positions, is taken to hide nothing.
    """
    leaves = _added(graph, bias)
    return None if leaves is None else Mask(tuple(dict.fromkeys(leaves)))


def _added(graph: ir.Graph, bias: ir.Value) -> list[Leaf] | None:
    """The factors of a float value that is added to scores."""
    producer = bias.producer()
    if bias.const_value is None and producer is not None and not producer.domain:
        inputs = [v for v in producer.inputs if v is not None]
        if producer.op_type == "Where":
            condition, x, y = inputs
            if is_low(y):
                return _both(conditions(graph, condition, "is"), _added(graph, x))
            if is_low(x):
                return _both(conditions(graph, condition, "not"), _added(graph, y))
        if producer.op_type == "Add":
            return _both(_added(graph, inputs[0]), _added(graph, inputs[1]))
        if producer.op_type == "Max" and len(inputs) == 2 and any(is_low(v) for v in inputs):
            return _added(graph, inputs[1] if is_low(inputs[0]) else inputs[0])
    if bias.const_value is not None or batch_only(graph, [bias]):
        return [Leaf(bias, "added")]
    return []


def conditions(graph: ir.Graph, value: ir.Value, kind: str) -> list[Leaf] | None:
    """Return the factors of a condition that holds where a key is visible, or ("not") where it is hidden."""
    producer = value.producer()
    if kind == "is" and value.const_value is None and producer is not None and producer.op_type == "And":
        left, right = producer.inputs
        assert left is not None and right is not None
        return _both(conditions(graph, left, kind), conditions(graph, right, kind))
    known = value.const_value is not None or batch_only(graph, [value])
    return [Leaf(value, kind)] if known else None


def _both(left: list[Leaf] | None, right: list[Leaf] | None) -> list[Leaf] | None:
    return None if left is None or right is None else left + right


def _low(dtype: ir.DataType | None) -> float:
    """What hides a key: no score comes near it, and next to any other nothing is left of a weight so low."""
    assert dtype is not None
    if dtype == ir.DataType.FLOAT16:
        return -3e4
    return -1e9


def is_low(value: ir.Value) -> bool:
    """Whether nothing is left of the weight of a key to whose score a constant is added, or which it replaces."""
    const = value.const_value
    return const is not None and bool(np.all(np.asarray(const.numpy(), np.float64) <= _low(value.dtype)))


def _any(leaves: Sequence[ir.Value], axes: Sequence[int], op: Builder) -> ir.Value:
    """Emit whether all of `leaves` hold anywhere along `axes`, which become one place long.

    Only those that vary along the axes are looked at together: padding and causality cost no square of the length.
    """
    varying = [v for v in leaves if any(static_dims(v)[a] > 1 for a in axes)]
    all_of: Any = None
    for part in varying:
        all_of = part if all_of is None else op.And(all_of, part)
    if all_of is not None:
        highest = op.ReduceMax(op.Cast(all_of, to=ir.DataType.INT32), list(axes), keepdims=1)
        all_of = op.Greater(highest, 0)
    for part in leaves:
        if not any(part is other for other in varying):
            all_of = part if all_of is None else op.And(all_of, part)
    mask: ir.Value = all_of if all_of is not None else op.const(np.ones((1, 1, 1, 1), bool))
    return mask
