"""Padding: rows that no query sees, that have no label, and that nobody reads."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ontrain.graph import DOMAIN, Builder, is_float, live_nodes, rebuild, static_dims
from ontrain.passes.infra import note
from ontrain.passes.rows.labels import label_layout, labelled, losses, packed_loss
from ontrain.passes.rows.layout import Layout
from ontrain.passes.rows.masks import Mask, masked_attentions
from ontrain.passes.rows.section import WHOLE, Demand, Section, Sections, find_section
from ontrain.passes.rows.selection import Keep, RowPass, Selection, batch_only, keep_model
from ontrain.passes.rows.unread import rows_read

__all__ = ["EliminatePadding"]

Needed = Callable[[Builder, Mapping[ir.Value, ir.Value]], ir.Value]
"""needed(op, copies): emits which rows a reader needs, bool [rows], from copies of values of the batch."""


class EliminatePadding(RowPass):
    """Pack real tokens once, and keep them packed through every row-wise operator.

        ids [B, L] ─ Embedding ─ row-wise operators ─ q, k, v [B, H, L, D] ─ Attention(bias from a mask) ─ …
    →   PackRows(ids, i) [T] ─ Embedding ─ row-wise operators ─ SpreadRows ─ Attention(bias) ─ PackRows ─ …
        with i [T] = SelectRows(keep)

    A row is kept if a query of its sequence sees it as a key, if it has a label, or if it is read by itself, as the
    first token by a pooler, or by a Where that puts a constant in place of the others, or a product with zero for
    these. Equal because the weight of a key that is hidden is zero whatever key and value are, and the result of a
    query that is not kept reaches nothing.
    Where a row that is kept sees no key at all (its weights are then even over all keys) its sequence is kept whole.
    Left alone: values that are read whole, such as outputs of the model or scores over all places, and all that comes
    before them; attention whose mask the batch alone does not determine.
    """

    level = 2

    def leave_out(self, model: ir.Model, keep: Keep) -> tuple[ir.Model, int]:
        """Rewrite one set of tokens after another; what changed are the nodes that work on fewer rows."""
        changed, groups = 0, _groups(model.graph)
        for number in range(len(groups)):
            space = _space(model, number, groups[number]) if number < len(groups) else None
            if space is None:
                continue
            selection, section = space.selection, space.section
            (count,) = keep(self, model, [selection])
            if count < selection.rows:
                model = rebuild(model, Sections(section, selection.index(count), space.sinks))
                groups = _groups(model.graph)
                changed += len(section.packed)
                note(f"{selection.name}: {count} of {selection.rows} rows, {section.products()} products on them")
        return model, changed


@dataclass
class _Space:
    """Tokens that a set of attentions has as keys, and what works on rows of them."""

    selection: Selection
    section: Section
    sinks: dict[ir.Node, Callable[..., list[ir.Value] | None]]


@dataclass
class _Group:
    """Attentions whose masks depend on one thing of the batch, such as its attention mask."""

    shape: tuple[int, int]
    masks: dict[ir.Node, Mask] = field(default_factory=dict)


def _groups(graph: ir.Graph) -> list[_Group]:
    groups: dict[object, _Group] = {}
    for node, mask in masked_attentions(graph):
        k = node.inputs[1]
        assert k is not None
        batch, _, length, _ = static_dims(k)
        if batch * length < 2:
            continue
        group = groups.setdefault((mask.computed, batch, length), _Group((batch, length)))
        group.masks[node] = mask
    return list(groups.values())


def _space(model: ir.Model, number: int, group: _Group) -> _Space | None:
    name, readers = f"unpadded rows {number}", _row_readers(model.graph, group)
    while True:
        section = find_section(model.graph, functools.partial(_read, group, readers))
        spoiled = [node for node in readers if node in section.spoiled]
        if not spoiled:
            break
        for node in spoiled:
            del readers[node]
    if not section.products():
        note(f"{name}: all, what attention reads is read whole by others, too")
        return None
    used = {node: reader for node, reader in readers.items() if _reads_by_itself(node, reader, section)}
    keep = _keep(model, group, section, used)
    if keep is None:
        note(f"{name}: all, the batch alone does not determine which are read")
        return None
    sinks = {node: reader.sink for node, reader in used.items() if reader.sink is not None}
    return _Space(Selection(name, group.shape[0] * group.shape[1], keep), section, sinks)


def _reads_by_itself(node: ir.Node, reader: _Reader, section: Section) -> bool:
    state = section.states.get(node.outputs[0])
    if not reader.works_on_rows:
        return state is not None
    source = node.inputs[reader.operand]
    return state is WHOLE and source is not None and isinstance(section.states.get(source), Layout)


# Who reads single rows.


@dataclass
class _Reader:
    """A node that reads some rows of one of its inputs.

    Attributes:
        layout: where all rows of the space lie in that input.
        values: of the batch, which it takes to know the rows.
        needed: emits them.
        sink: makes the node on packed rows.
        operand: which input it is.
        works_on_rows: whether it may also work on packed rows, so that it is a reader only where all of its result is
            read.
    """

    layout: Layout
    values: list[ir.Value]
    needed: Needed
    sink: Callable[..., list[ir.Value] | None] | None = None
    operand: int = 0
    works_on_rows: bool = False


def _row_readers(graph: ir.Graph, group: _Group) -> dict[ir.Node, _Reader]:
    rows = group.shape[0] * group.shape[1]
    readers: dict[ir.Node, _Reader] = {}
    for node in losses(graph):
        labels = node.inputs[1]
        if labels is not None and "ignore_index" in node.attributes and int(np.prod(static_dims(labels))) == rows:
            layout = label_layout(node)
            readers[node] = _Reader(
                layout, [labels], functools.partial(_labelled, node, labels),
                functools.partial(packed_loss, layout=layout),
            )  # fmt: skip
    for node in live_nodes(graph):
        x = node.inputs[0] if node.inputs else None
        if x is None:
            continue
        if node.op_type in _HIDING and not node.domain:
            if (reader := _HIDING[node.op_type](graph, node, group)) is not None:
                readers[node] = reader
            continue
        if (node.domain, node.op_type) == (DOMAIN, "PackRows") and is_float(x) and static_dims(x)[0] == rows:
            reader = _of_chosen(node, rows)
            if reader is not None:
                readers[node] = reader
        elif (read := rows_read(node)) is not None and static_dims(x)[:2] == group.shape and set(read.places) <= {0, 1}:
            needed = np.zeros(rows, bool)
            needed[read.flat(static_dims(x))] = True
            readers[node] = _Reader(Layout.leading(group.shape), [], functools.partial(_fixed, needed))
    return readers


def _labelled(root: ir.Node, labels: ir.Value, op: Builder, copies: Mapping[ir.Value, ir.Value]) -> ir.Value:
    return labelled(root, copies[labels] if labels.const_value is None else labels, op)


def _fixed(needed: np.ndarray, op: Builder, copies: Mapping[ir.Value, ir.Value]) -> ir.Value:
    return op.const(needed)


def _of_hidden(graph: ir.Graph, node: ir.Node, group: _Group) -> _Reader | None:
    """The rows that a condition of the batch lets through; in place of the others stands a constant."""
    condition, x, y = node.inputs
    assert condition is not None and x is not None and y is not None
    operand = 1 if y.const_value is not None else 2
    source, shape = (x, y)[operand - 1], static_dims(node.outputs[0])
    if (x.const_value is None) == (y.const_value is None) or not is_float(source) or static_dims(source) != shape:
        return None
    by_row = (*group.shape, *[1] * (len(shape) - 2))
    if shape[:2] != group.shape or static_dims(condition) != by_row or not batch_only(graph, [condition]):
        return None
    needed = functools.partial(_let_through, condition, operand == 1)
    return _Reader(Layout.leading(group.shape), [condition], needed, operand=operand, works_on_rows=True)


def _let_through(condition: ir.Value, where: bool, op: Builder, copies: Mapping[ir.Value, ir.Value]) -> ir.Value:
    flat: ir.Value = op.Reshape(copies[condition], [-1])
    return flat if where else op.Not(flat)


def _of_weighted(graph: ir.Graph, node: ir.Node, group: _Group) -> _Reader | None:
    """The rows that are multiplied by numbers of the batch, as for a mean over the tokens, where these are not zero."""
    shape = static_dims(node.outputs[0])
    for operand in (0, 1):
        x, weight = node.inputs[operand], node.inputs[1 - operand]
        if x is None or weight is None or not is_float(x) or static_dims(x) != shape or shape[:2] != group.shape:
            continue
        dims = static_dims(weight)
        by_row = len(dims) == len(shape) and dims[:2] == group.shape
        if by_row and weight.const_value is None and batch_only(graph, [weight]):
            needed = functools.partial(_not_zero, weight)
            return _Reader(Layout.leading(group.shape), [weight], needed, operand=operand, works_on_rows=True)
    return None


def _not_zero(weight: ir.Value, op: Builder, copies: Mapping[ir.Value, ir.Value]) -> ir.Value:
    by_row = op.Reshape(op.Abs(copies[weight]), [math.prod(static_dims(weight)[:2]), -1])
    flat: ir.Value = op.Reshape(op.Greater(op.ReduceMax(by_row, [1], keepdims=1), 0.0), [-1])
    return flat


_HIDING = {"Where": _of_hidden, "Mul": _of_weighted}
"""Operators that leave nothing of some rows."""


def _of_chosen(node: ir.Node, rows: int) -> _Reader | None:
    """The rows that an earlier pass packs: a selection, perhaps moved to other places, or constant numbers."""
    index = node.inputs[1]
    assert index is not None
    layout = Layout.leading([rows])
    if index.const_value is not None:
        needed = np.zeros(rows, bool)
        needed[index.const_value.numpy()] = True
        return _Reader(layout, [], functools.partial(_fixed, needed), _repacked)
    producer, where = index.producer(), None
    if producer is not None and producer.op_type == "Gather" and not producer.domain:
        places, index = producer.inputs
        if places is None or places.const_value is None or index is None:
            return None
        producer, where = index.producer(), places.const_value.numpy()
    if producer is None or producer.op_type != "SelectRows" or producer.inputs[0] is None:
        return None
    keep = producer.inputs[0]
    return _Reader(layout, [keep], functools.partial(_moved, keep, where, rows), _repacked)


def _moved(
    keep: ir.Value, where: np.ndarray | None, rows: int, op: Builder, copies: Mapping[ir.Value, ir.Value]
) -> ir.Value:
    """Rows that are kept of another set, at their places in this one."""
    copy = copies[keep]
    if where is None:
        return copy
    source = np.full(rows, len(where), np.int64)
    source[where] = np.arange(len(where))
    moved: ir.Value = op.Gather(op.Concat(copy, np.zeros(1, bool), axis=0), source, axis=0)
    return moved


def _repacked(sections: Sections, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value] | None:
    """Rows taken from packed rows: by their places among these. Rows that are not there count for nothing."""
    x, index = inputs
    if x is None or index is None or not sections.section.holds(node.inputs[0]):
        return None
    rows = sections.index.rows
    places = sections.index.places(op, np.arange(rows), rows)
    return [op.Gather(x, op.Gather(places, index, axis=0), axis=0)]


def _read(
    group: _Group, readers: Mapping[ir.Node, _Reader], node: ir.Node, layout: Layout | None
) -> list[Demand] | None:
    """Attention reads keys and values that some query sees, and the queries that it is asked for."""
    if node in readers:
        reader = readers[node]
        if layout is not None and reader.works_on_rows:
            return None
        return [reader.layout if i == reader.operand else None for i in range(len(node.inputs))]
    if node not in group.masks:
        return None
    leading = Layout.leading(group.shape)
    keys = leading.moved({0: 0, 1: 2})
    queries = layout if layout is not None and layout == keys else None
    return [queries, keys, keys, *[None] * (len(node.inputs) - 3)]


# Which rows are kept.


def _keep(model: ir.Model, group: _Group, section: Section, readers: Mapping[ir.Node, _Reader]) -> ir.Model | None:
    values = {v: None for mask in group.masks.values() for v, _ in sorted(mask.computed, key=_name_of_first)}
    values.update((v, None) for reader in readers.values() for v in reader.values if v.const_value is None)
    batch, length = group.shape

    def condition(op: Builder, replicas: list[ir.Value]) -> ir.Value:
        copies = dict(zip(values, replicas, strict=True))
        needed: ir.Value | None = None
        for mask in dict.fromkeys(group.masks.values()):
            needed = _or(op, needed, op.Reshape(mask.seen(op, copies, group.shape), [-1]))
        for reader in readers.values():
            needed = _or(op, needed, reader.needed(op, copies))
        needed = op.Reshape(needed, [batch, length])
        whole: ir.Value | None = None
        # Queries of another set, or all of which count, may be blind wherever they stand.
        for mask, own in dict.fromkeys((mask, _own_queries(section, node)) for node, mask in group.masks.items()):
            alone = op.Not(mask.sees(op, copies))
            if alone.const_value is not None and not alone.const_value.numpy().any():
                continue
            blind = op.Cast(op.And(alone, needed) if own else alone, to=ir.DataType.INT32)
            whole = _or(op, whole, op.Greater(op.ReduceMax(blind, [1], keepdims=1), 0))
        flat: ir.Value = op.Reshape(needed if whole is None else op.Or(needed, whole), [-1])
        return flat

    return keep_model(model, list(values), condition)


def _own_queries(section: Section, attention: ir.Node) -> bool:
    """Whether an attention's queries are rows of the section, of which not all are read."""
    q = attention.inputs[0]
    assert q is not None
    return isinstance(section.states.get(q), Layout)


def _name_of_first(computed: tuple[ir.Value, object]) -> str:
    return str(computed[0].name)


def _or(op: Builder, left: ir.Value | None, right: ir.Value) -> ir.Value:
    return right if left is None else op.Or(left, right)
