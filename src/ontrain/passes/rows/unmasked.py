"""Attention of batches in which the mask hides nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder, rebuild, static_dims
from ontrain.passes.attention_bias import bias_of, with_bias
from ontrain.passes.infra import note
from ontrain.passes.rows.masks import Mask, conditions, find_mask, is_low, masked_attentions, with_four_axes
from ontrain.passes.rows.selection import Keep, RowPass, Selection, anywhere, batch_only, whether

__all__ = ["EliminateMasks"]


class EliminateMasks(RowPass):
    """Add no mask to the scores of a batch that has no padding.

        q, k, v ─ Attention(bias = Where(padding, −∞, 0))                    →   q, k, v ─ Attention
        q, k, v ─ Attention(bias = Where(And(causal, not padding), 0, −∞))   →   q, k, v ─ Attention(Where(causal))
        q, k, v ─ Attention(bias = Add(positions, Where(padding, −∞, 0)))    →   q, k, v ─ Attention(positions)
        Attention(…) · (1 where a row sees a key)                            →   Attention(…)

    Equal where each part of the mask that the batch determines lets every key through and adds zero, and each row sees
    a key. That is looked at in each batch, as one of two "rows" of a selection; a batch with padding keeps the graph as
    it was, and `EliminatePadding` has its rows. Without a bias, or with a constant causal one, a provider has faster
    kernels. Left alone: attention whose mask the batch alone does not determine.
    """

    level = 2

    def leave_out(self, model: ir.Model, keep: Keep) -> tuple[ir.Model, int]:
        """Take from each attention the parts of its mask that hide nothing in this batch."""
        groups = _groups(model)
        counts = keep(self, model, [group.selection for group in groups]) if groups else ()
        plain = [group for group, rows in zip(groups, counts, strict=True) if rows < group.selection.rows]
        if not plain:
            return model, 0
        for group in plain:
            note(f"{group.selection.name}: {len(group.attentions)} attentions without what hides nothing")
        attentions = {node for group in plain for node in group.attentions}
        factors = {node: factor for group in plain for node, factor in group.factors.items()}
        return rebuild(model, _Rewriting(model.graph, attentions, factors)), len(attentions)


@dataclass
class _Group:
    """Attentions whose masks depend on one thing of the batch, and products of their results with numbers of it.

    Attributes:
        factors: which operand of a product is the attention's result.
    """

    selection: Selection
    attentions: list[ir.Node]
    factors: dict[ir.Node, int]


def _groups(model: ir.Model) -> list[_Group]:
    attentions: dict[frozenset[tuple[ir.Value, str]], tuple[Mask, list[ir.Node]]] = {}
    for node, mask in masked_attentions(model.graph):
        attentions.setdefault(mask.computed, (mask, []))[1].append(node)
    groups: list[_Group] = []
    for mask, nodes in attentions.values():
        factors = _factors(model.graph, nodes)
        selection = _selection(model, len(groups), mask, factors)
        if selection is not None:
            groups.append(_Group(selection, nodes, factors))
    return groups


def _factors(graph: ir.Graph, attentions: Sequence[ir.Node]) -> dict[ir.Node, int]:
    """Products of attentions' results with numbers of the batch, which are zero where a row sees no key."""
    factors: dict[ir.Node, int] = {}
    for result in (node.outputs[0] for node in attentions):
        for product, operand in result.uses():
            other = product.inputs[1 - operand] if (product.domain, product.op_type) == ("", "Mul") else None
            same = static_dims(product.outputs[0]) == static_dims(result)
            if other is not None and other.const_value is None and same and batch_only(graph, [other]):
                factors[product] = operand
    return factors


def _selection(model: ir.Model, number: int, mask: Mask, factors: Mapping[ir.Node, int]) -> Selection | None:
    """Two rows: one that is always kept, and one that is where the batch hides a key or adds to a score."""
    leaves = [v for v, _ in sorted(mask.computed, key=lambda leaf: str(leaf[0].name))]
    seen = [node.inputs[1 - operand] for node, operand in factors.items()]
    values = list(dict.fromkeys(v for v in [*leaves, *seen] if v is not None))

    def condition(op: Builder, replicas: list[ir.Value]) -> ir.Value:
        copies = dict(zip(values, replicas, strict=True))
        acts = mask.acts(op, copies)
        for factor in dict.fromkeys(copies[v] for v in seen if v is not None):
            acts = op.Or(acts, anywhere(op, op.Not(op.Equal(factor, op.const(1.0, factor.dtype)))))
        return acts

    return whether(f"masks {number}", model, values, condition)


class _Rewriting:
    """Makes attentions again with what is left of their masks."""

    def __init__(self, graph: ir.Graph, attentions: set[ir.Node], factors: Mapping[ir.Node, int]) -> None:
        self._graph, self._attentions, self._factors = graph, attentions, factors
        self._new: dict[ir.Value, ir.Value] = {}
        """What nodes read, in the old graph and in the new one."""

    def __call__(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Sequence[ir.Value | None] | None:
        pairs = zip(node.inputs, inputs, strict=True)
        self._new.update((old, new) for old, new in pairs if old is not None and new is not None)
        if node in self._factors:
            return [inputs[self._factors[node]]]
        if node not in self._attentions:
            return None
        bias = bias_of(node)
        assert bias is not None
        left = self._added(op, bias)
        return with_bias(op, node, inputs, None if left is None else with_four_axes(op, left))

    def _added(self, op: Builder, value: ir.Value) -> ir.Value | None:
        """Emit a value that is added to scores without the parts that the batch determines; None for zero."""
        if value.const_value is not None and not np.asarray(value.const_value.numpy()).any():
            return None
        mask = find_mask(self._graph, value)
        assert mask is not None, "it is part of a mask that the batch determines"
        if not mask.computed:
            return self._new[value]
        if (value, "added") in mask.computed:
            return None
        node = value.producer()
        assert node is not None
        if node.op_type == "Where":
            return self._chosen(op, node)
        # A sum, or a maximum with what hides a key, as which no score is as low.
        parts = [self._added(op, v) for v in node.inputs if v is not None and not (node.op_type == "Max" and is_low(v))]
        return functools.reduce(lambda x, y: _joined(op.Add, x, y), parts)

    def _chosen(self, op: Builder, node: ir.Node) -> ir.Value | None:
        condition, x, y = node.inputs
        assert condition is not None and x is not None and y is not None
        shown, hidden = (x, y) if is_low(y) else (y, x)
        kind = "is" if shown is x else "not"
        added, where = self._added(op, shown), self._condition(op, condition, kind)
        if where is None:
            return added
        base, low = op.const(0.0, shown.dtype) if added is None else added, self._new[hidden]
        chosen: ir.Value = op.Where(where, base, low) if kind == "is" else op.Where(where, low, base)
        return chosen

    def _condition(self, op: Builder, value: ir.Value, kind: str) -> ir.Value | None:
        """Emit the constant parts of a condition that hide something; None where it has none."""
        leaves = conditions(self._graph, value, kind)
        assert leaves is not None
        values = [leaf.value.const_value for leaf in leaves if leaf.acts_always()]
        constant = [op.const(tensor.numpy()) for tensor in values if tensor is not None]
        return functools.reduce(lambda x, y: _joined(op.And, x, y), constant, None)


def _joined(join: Callable[..., ir.Value], x: ir.Value | None, y: ir.Value | None) -> ir.Value | None:
    """Emit an operator on the operands that there are."""
    return join(x, y) if x is not None and y is not None else x if y is None else y
