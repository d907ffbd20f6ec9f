"""Attention of packed rows as it is: sequence by sequence, without the padding that a batch of them had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ontrain.functions import probabilities_are_read
from ontrain.graph import DOMAIN, Builder, Rewrite, live_nodes, rebuild, static_dims
from ontrain.operators import HALVES
from ontrain.passes.infra import note
from ontrain.passes.lower_precision import announced
from ontrain.passes.rows.masks import find_mask
from ontrain.passes.rows.selection import Keep, RowPass, Selection, anywhere, whether

__all__ = ["AttendSequences"]

_TURN = [0, 2, 1, 3]
"""Between [B, L, H, E] and [B, H, L, E]."""
_WIDTHS = range(8, 257, 8)
_TYPES = (ir.DataType.FLOAT, *HALVES)
"""Elements of a head, and their types, for which there are kernels."""


class AttendSequences(RowPass):
    """Let attention work on rows that `EliminatePadding` packed, and not on the batch that they came from.

        x [T, H, E] ─ SpreadRows ─ Reshape ─ Transpose ─ Attention(bias) ─ Transpose ─ Reshape ─ PackRows ─ [T, H · E]
    →   x [T, H, E] ─ Transpose ─ Attention(bounds) ─ Transpose ─ Reshape ─ [T, H · E]

    Equal where the mask leaves each row that is kept visible to all others of its sequence and adds nothing to their
    scores: then the weights of others are zero, and the rest is the attention of the sequence. That is looked at in
    each batch, as one of two "rows" of a selection; a batch of which it is not so keeps the graph as it was. Rows
    that fill up the last bucket are sequences of their own. Masks of dropout are drawn for the rows that are left.
    Left alone: attention whose mask hides something in every batch, as a causal one; queries that are other rows than
    the keys; heads for which there is no kernel, or none that drops out in single precision; and all of them on
    providers that gain nothing by it.
    """

    level = 2
    attends_sequences = True

    def leave_out(self, model: ir.Model, keep: Keep) -> tuple[ir.Model, int]:
        """Rewrite the attentions of all masks that hide nothing in this batch.

        A selection has two "rows" for each mask, of which the second is kept where the mask does hide something.
        """
        spaces = _find(model)
        selections = [space.selection for space in spaces]
        counts = keep(self, model, selections) if selections else ()
        chosen = [space for space, rows in zip(spaces, counts, strict=True) if rows < space.selection.rows]
        for space in chosen:
            note(f"{space.selection.name}: {len(space.attentions)} attentions sequence by sequence")
        if not chosen:
            return model, 0
        return rebuild(model, _rewriting(chosen)), sum(len(space.attentions) for space in chosen)


@dataclass(frozen=True)
class _Operand:
    """What a query, key or value [B, H, L, E] was before it was spread."""

    packed: ir.Value
    places: ir.Value
    index: ir.Value


@dataclass
class _Space:
    """Attentions of one mask whose queries, keys and values are rows chosen by one index.

    Attributes:
        shape: sequences, and their length.
        index: the numbers of the rows, from a SelectRows.
    """

    selection: Selection
    shape: tuple[int, int]
    index: ir.Value
    attentions: list[ir.Node]


def _find(model: ir.Model) -> list[_Space]:
    groups: dict[tuple[ir.Value, ir.Value], list[ir.Node]] = {}
    lowered = announced(model.graph)
    for node in live_nodes(model.graph):
        if (node.domain, node.op_type) != (DOMAIN, "Attention") or not _fits(node, lowered):
            continue
        operands = [_operand(value) for value in node.inputs[:3]]
        first, bias = operands[0], node.inputs[3]
        if first is not None and bias is not None and all(each and each.index is first.index for each in operands):
            groups.setdefault((bias, first.index), []).append(node)
    spaces: list[_Space] = []
    for (bias, index), nodes in groups.items():
        selection = _selection(model, len(spaces), bias, index, static_dims(nodes[0].outputs[0]))
        if selection is not None:
            batch, _, length, _ = static_dims(nodes[0].outputs[0])
            spaces.append(_Space(selection, (batch, length), index, nodes))
    return spaces


def _fits(node: ir.Node, lowered: ir.DataType | None) -> bool:
    q, k, v = node.inputs[:3]
    assert q is not None and k is not None and v is not None
    if len(node.inputs) != 4 or len(static_dims(q)) != 4 or probabilities_are_read(node):
        return False
    if (lowered or q.dtype) == ir.DataType.FLOAT and node.attributes.get_float("dropout", 0.0) > 0:
        return False  # of packed sequences this kernel draws other masks going backward than forward
    same = static_dims(q) == static_dims(k) == static_dims(v)
    return same and static_dims(q)[-1] in _WIDTHS and q.dtype in _TYPES


def _operand(value: ir.Value | None) -> _Operand | None:
    """Look through the transposition and the reshapes that come after rows were spread."""
    node = value.producer() if value is not None else None
    if node is None or not _turns(node) or (source := node.inputs[0]) is None:
        return None
    batch, length, *_ = static_dims(source)
    node = source.producer()
    while node is not None and node.op_type == "Reshape" and not node.domain and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or (node.domain, node.op_type) != (DOMAIN, "SpreadRows"):
        return None
    packed, places, index = node.inputs
    assert packed is not None and places is not None and index is not None
    chosen = index.producer()
    if chosen is None or chosen.op_type != "SelectRows" or static_dims(places) != (batch * length,):
        return None
    return _Operand(packed, places, index)


def _turns(node: ir.Node) -> bool:
    """Whether a node is the transposition between rows and heads."""
    turns = node.op_type == "Transpose" and not node.domain and "perm" in node.attributes
    return turns and list(node.attributes["perm"].as_ints()) == _TURN


def _selection(model: ir.Model, number: int, bias: ir.Value, index: ir.Value, shape: Sequence[int]) -> Selection | None:
    """Two rows: one that is always kept, and one that is where the mask hides a row that is kept from another."""
    mask, chosen = find_mask(model.graph, bias), index.producer()
    if mask is None or mask.acts_always():
        return None
    batch, _, length, _ = shape
    assert chosen is not None and chosen.inputs[0] is not None

    def condition(op: Builder, values: list[ir.Value]) -> ir.Value:
        added, seen = values
        hidden = op.Not(op.Equal(added, op.const(0.0, added.dtype)))
        hidden = op.And(hidden, op.Reshape(seen, [batch, 1, 1, length]))
        if static_dims(added)[-2] > 1:
            hidden = op.And(hidden, op.Reshape(seen, [batch, 1, length, 1]))
        return anywhere(op, hidden)

    return whether(f"sequences {number}", model, [bias, chosen.inputs[0]], condition)


def _rewriting(spaces: Sequence[_Space]) -> Rewrite:
    """What makes the attentions of several masks again: each takes its own nodes and leaves the others'."""
    rewritings = [_Rewriting(space) for space in spaces]

    def rewrite(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Sequence[ir.Value | None] | None:
        for rewriting in rewritings:
            outputs = rewriting(op, node, inputs)
            if outputs is not None:
                return outputs
        return None

    return rewrite


class _Rewriting:
    """Makes attentions again on packed rows, and takes what is packed of their results from there."""

    def __init__(self, space: _Space) -> None:
        self._space, self._nodes = space, set(space.attentions)
        self._bounds: ir.Value | None = None
        self._by_head: dict[ir.Value, ir.Value] = {}
        self._by_row: dict[ir.Value, ir.Value] = {}
        """Results in the old graph, [B, H, L, E] and [B, L, …], and the packed rows in the new one."""

    def __call__(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Sequence[ir.Value | None] | None:
        if node in self._nodes:
            return self._attention(op, node, inputs)
        x = node.inputs[0] if node.inputs else None
        if x in self._by_head and _turns(node):
            self._by_row[node.outputs[0]] = self._by_head[x]
        elif x in self._by_row and node.op_type == "Reshape" and not node.domain and self._rows_stay(node):
            self._by_row[node.outputs[0]] = self._by_row[x]
        elif x in self._by_row and node.op_type == "PackRows" and node.inputs[1] is self._space.index:
            return [op.Reshape(self._by_row[x], list(static_dims(node.outputs[0])))]
        return None

    def _attention(self, op: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[ir.Value | None]:
        batch, heads, length, width = static_dims(node.outputs[0])
        operands = [_operand(value) for value in inputs[:3]]
        by_head: list[ir.Value] = []
        for operand in operands:
            assert operand is not None, "the new graph has what the old one had"
            by_row = op.Reshape(operand.packed, [1, *static_dims(operand.index), heads, width])
            by_head.append(op.Transpose(by_row, perm=_TURN))
        first = operands[0]
        assert first is not None
        if self._bounds is None:
            self._bounds = _bounds(op, first.index, batch, length)
        attributes = [*node.attributes.values(), ir.AttrInt64("longest", length)]
        outputs = len(node.outputs)
        copy = ir.Node(DOMAIN, "Attention", [*by_head, None, None, self._bounds], attributes, num_outputs=outputs)
        results = op.add(copy, [v.name for v in node.outputs])
        y = results[0] if isinstance(results, tuple) else results
        packed = op.Reshape(op.Transpose(y, perm=_TURN), [*static_dims(first.index), heads, width])
        self._by_head[node.outputs[0]] = packed
        spread = op.composite("SpreadRows", packed, first.places, first.index)
        whole = op.Transpose(op.Reshape(spread, [batch, length, heads, width]), perm=_TURN)
        return [whole, *[None] * (outputs - 1)]

    def _rows_stay(self, node: ir.Node) -> bool:
        """Whether a reshape leaves each row by itself."""
        batch, length = self._space.shape
        shape = static_dims(node.outputs[0])
        return shape[:2] == (batch, length) or shape[:1] == (batch * length,)


def _bounds(op: Builder, index: ir.Value, batch: int, length: int) -> ir.Value:
    """Emit where the rows of each sequence end, int32 [N + 1] from zero on, and then those of rows that fill up."""
    (rows,), chosen = static_dims(index), index.producer()
    assert chosen is not None
    mask = op.Cast(op.Reshape(chosen.inputs[0], [batch, length]), to=ir.DataType.INT32)
    ends = op.CumSum(op.ReduceSum(mask, np.array([1]), keepdims=0), op.const(0, ir.DataType.INT64))
    total = op.Slice(ends, np.array([batch - 1]), np.array([batch]), np.array([0]))
    more = np.arange(1, -(-rows // length) + 1, dtype=np.int32) * length
    fill = op.Min(op.Add(total, op.const(more)), op.const(np.array([rows], np.int32)))
    bounds: ir.Value = op.Concat(op.const(np.zeros(1, np.int32)), ends, fill, axis=0)
    return bounds
