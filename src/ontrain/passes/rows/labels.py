"""Rows without a label, which reach neither the head nor the loss."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder, live_nodes, rebuild, static_dims
from ontrain.operators import each, record_of
from ontrain.passes.infra import note
from ontrain.passes.rows.layout import Layout, Places
from ontrain.passes.rows.section import Section, Sections, find_section
from ontrain.passes.rows.selection import Keep, RowPass, Selection, keep_model, rows_of
from ontrain.passes.rows.unread import read_from, rows_read

__all__ = ["EliminateUnlabelledRows", "label_layout", "labelled", "losses", "packed_loss"]

_FEW = 4
"""Rows without a label are kept for another reader where they are at most a quarter of all."""


class EliminateUnlabelledRows(RowPass):
    """Compute the loss, the head and what comes before it on labelled rows only.

        h [N, H] ─ row-wise operators ─ logits [N, V] ─ SoftmaxCrossEntropyLoss(labels [N], ignore_index)
    →   PackRows(h, i) ─ row-wise operators ─ [R, V] ─ SoftmaxCrossEntropyLoss(PackRows(labels, i), ignore_index)
        with i [R] = SelectRows(labels ≠ ignore_index)

    Equal because a row whose label is ignored has weight and gradient zero. The rows that fill up R are such rows. The
    gather moves up to the last operator that mixes rows or whose result is read whole by someone else. Attention mixes
    rows of keys and values only: the query's projection is made on labelled rows, too. Masks of dropout are drawn for
    the rows that are left.
    Left alone: labels that depend on a parameter, losses whose log-probabilities are read elsewhere, graphs in which
    (nearly) every row has a label.
    """

    level = 2

    def leave_out(self, model: ir.Model, keep: Keep) -> tuple[ir.Model, int]:
        """Rewrite one loss after another; what changed are the nodes that work on fewer rows."""
        changed = 0
        for number in range(len(losses(model.graph))):
            labelled_rows = _find(model, number)
            if labelled_rows is None:
                continue
            selection, section, root = labelled_rows.selection, labelled_rows.section, labelled_rows.root
            (count,) = keep(self, model, [selection])
            if count < selection.rows:
                sinks = {root: functools.partial(packed_loss, layout=label_layout(root))}
                model = rebuild(model, Sections(section, selection.index(count), sinks))
                changed += 1 + len(section.packed)
                note(f"{selection.name}: {count} of {selection.rows} rows, {section.products()} products on them")
        return model, changed


@dataclass(frozen=True)
class _LabelledRows:
    """The labelled rows of a loss, and what may work on them alone."""

    root: ir.Node
    selection: Selection
    section: Section


def losses(graph: ir.Graph) -> list[ir.Node]:
    """Return the classification losses of a graph, in order."""
    return [node for node in live_nodes(graph) if record_of(node).labels is not None and not node.domain]


def labelled(root: ir.Node, labels: ir.Value, op: Builder) -> ir.Value:
    """Emit which rows of a loss have a label, bool [rows]."""
    flat = op.Reshape(labels, [-1])
    has_label: ir.Value = op.Not(op.Equal(flat, root.attributes["ignore_index"].as_int()))
    return has_label


def label_layout(root: ir.Node) -> Layout:
    """Return where the rows of a loss, in the order of its labels, lie in its scores [N, C, …]."""
    labels = root.inputs[1]
    assert labels is not None
    layout = Layout.leading(static_dims(labels))
    return layout.moved({a: a if a == 0 else a + 1 for a in layout.axes})


def _find(model: ir.Model, number: int) -> _LabelledRows | None:
    root = losses(model.graph)[number]
    labels = root.inputs[1]
    if "ignore_index" not in root.attributes or labels is None or rows_of(labels) < 2:
        return None
    name = f"labelled rows {number}"
    if any(v.uses() or v.is_graph_output() for v in root.outputs[1:]):
        note(f"{name}: all, the log-probabilities of {root.outputs[0].name} are read elsewhere")
        return None
    section, read = _section(model.graph, root)

    def condition(op: Builder, values: list[ir.Value]) -> ir.Value:
        has_label = labelled(root, values[0], op)
        return op.Or(has_label, read) if read is not None else has_label

    keep = keep_model(model, [labels], condition)
    if keep is None:
        note(f"{name}: all, the batch alone does not determine the labels of {root.outputs[0].name}")
        return None
    return _LabelledRows(root, Selection(name, rows_of(labels), keep), section)


def _section(graph: ir.Graph, root: ir.Node) -> tuple[Section, Places | None]:
    """Find what may work on the labelled rows of a loss.

    Others may read some rows of the same values, as a pooler the first of each sequence. Where it lets more products
    work on fewer rows, these are kept, too, and returned: bool [rows].
    """
    roots = {root: label_layout(root)}
    section = find_section(graph, functools.partial(read_from, roots))
    labels = root.inputs[1]
    assert labels is not None
    rows = rows_of(labels)
    needed = np.zeros(rows, bool)
    for node in live_nodes(graph):
        read = rows_read(node)
        if read is not None and node.inputs[0] is not None and set(read.places) <= {0, 1}:
            shape = static_dims(node.inputs[0])
            if shape[0] * shape[1] == rows:
                needed[read.flat(shape)] = True
                roots[node] = Layout.leading(shape[:2])
    if len(roots) == 1 or needed.sum() > rows // _FEW:
        return section, None
    more = find_section(graph, functools.partial(read_from, roots))
    return (more, needed) if more.products() > section.products() else (section, None)


def packed_loss(
    sections: Sections, op: Builder, node: ir.Node, inputs: list[ir.Value | None], *, layout: Layout
) -> list[ir.Value]:
    """Make a classification loss on packed rows of its scores and labels; one without a reduction is unpacked."""
    labels = inputs[1]
    assert labels is not None
    shape = static_dims(labels)
    rows = sections.index.rows
    scores = _scores(sections, op, node, inputs[0], layout)
    places = sections.index.chosen(op)
    flat = op.composite("PackRows", op.Reshape(labels, [rows]), places)
    (loss,) = each(op.add(ir.Node("", node.op_type, [scores, flat, *inputs[2:]], node.attributes.values())))
    if "reduction" in node.attributes and node.attributes["reduction"].as_string() == "none":
        loss = op.Reshape(op.composite("UnpackRows", loss, places, rows=rows), list(shape))
    return [loss]


def _scores(sections: Sections, op: Builder, node: ir.Node, new: ir.Value | None, layout: Layout) -> ir.Value:
    """The packed rows of a loss's scores [N, C, …], the class last: [rows, C]."""
    old = node.inputs[0]
    assert old is not None and new is not None
    rank, rows = len(static_dims(old)), sections.index.rows
    if rank == 2:
        return sections.rows(op, old, new, layout)
    last = [0, *range(2, rank), 1]
    producer = old.producer()
    if producer is not None and producer.op_type == "Transpose" and sections.section.holds(producer.inputs[0]):
        perm = list(producer.attributes["perm"].as_ints())
        source = producer.inputs[0]
        assert source is not None
        if [perm[a] for a in last] == list(range(rank)):
            return sections.made[source]
    moved = op.Reshape(op.Transpose(new, perm=last), [rows, static_dims(old)[1]])
    packed: ir.Value = op.composite("PackRows", moved, sections.index.chosen(op))
    return packed
