"""Rows that nobody reads: a classifier on the first token needs the last layer of the first tokens only."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ontrain.graph import DOMAIN, Builder, is_float, live_nodes, rebuild, static_dims
from ontrain.passes.infra import Pass, note
from ontrain.passes.rows.layout import Layout
from ontrain.passes.rows.operators import cut
from ontrain.passes.rows.section import Demand, Index, Sections, find_section

__all__ = ["EliminateUnreadRows", "read_from", "rows_read"]


class EliminateUnreadRows(Pass):
    """Take the rows that are read before they are computed, not after.

        h [B, L, H] ─ row-wise operators ─ Slice [:, 0]
    →   PackRows(h, first) ─ row-wise operators ─ Reshape

    Equal because the others reach nothing. The slice moves up to the last operator that mixes rows, and through an
    attention to its queries; a value that someone else reads whole stops it.
    Left alone: slices of half of the rows or more, and those that no product with a matrix comes before.
    """

    level = 2

    def apply(self, model: ir.Model) -> tuple[ir.Model, int]:
        """Rewrite one slice after another; what changed are the nodes that work on fewer rows."""
        changed = 0
        readers = _readers(model.graph)
        for name in list(readers):
            # A slice may have gone with another one, whose rows it read.
            root = readers.get(name)
            if root is None:
                continue
            source = root.inputs[0]
            layout = rows_read(root)
            assert layout is not None and source is not None
            section = find_section(model.graph, functools.partial(read_from, {root: layout}))
            if not section.products() or not section.holds(source):
                continue
            index = Index(layout.rows, layout.rows, functools.partial(_all_rows, layout.rows))
            note(f"{root.outputs[0].name}: {layout.rows} rows, {section.products()} products on them")
            model = rebuild(model, Sections(section, index, {root: _taken}))
            changed += 1 + len(section.packed)
            readers = _readers(model.graph)
        return model, changed


def _readers(graph: ir.Graph) -> dict[str, ir.Node]:
    """The nodes that take less than half of the rows of a value and alone read it, by the names of their results."""
    roots = {}
    nodes = live_nodes(graph)
    alive = set(nodes)
    for node in nodes:
        layout = rows_read(node)
        source = node.inputs[0] if node.inputs else None
        if layout is None or source is None or _has_others(source, node, alive):
            continue
        lead = layout.lead(static_dims(source))
        if lead is not None and 2 * layout.rows < int(np.prod(static_dims(source)[:lead])):
            roots[node.outputs[0].name or ""] = node
    return roots


def _has_others(source: ir.Value, root: ir.Node, alive: set[ir.Node]) -> bool:
    """Whether someone else reads a value. All of it is read then: no reader but the root is content with its rows."""
    return source.is_graph_output() or any(reader is not root and reader in alive for reader in source.consumers())


def rows_read(node: ir.Node) -> Layout | None:
    """Return the rows of its first input that a slice or a gather by constants takes; None if it takes none or all."""
    if node.domain or node.op_type not in ("Slice", "Gather") or not node.inputs or node.inputs[0] is None:
        return None
    x = node.inputs[0]
    shape = static_dims(x)
    places = cut(node)
    if places is None or not is_float(x) or len(shape) < 3:
        return None
    # Only one axis in front of the last is cut, to places of which none comes twice.
    ((axis, taken),) = places.items() if len(places) == 1 else ((-1, np.zeros(0, np.int64)),)
    if not 0 < axis < len(shape) - 1 or len(np.unique(taken)) != len(taken) or len(taken) in (0, shape[axis]):
        return None
    layout = Layout.leading([*shape[:axis], len(taken)])
    others = {a: p for a, p in layout.places.items() if a != axis}
    others[axis] = taken[layout.places[axis]] if axis in layout.places else np.full(layout.rows, taken[0])
    return Layout(layout.rows, others)


def read_from(roots: Mapping[ir.Node, Layout], node: ir.Node, layout: Layout | None) -> list[Demand] | None:
    """Roots read these rows of their first operand; attention needs those of its queries that it is asked for."""
    if node in roots:
        return [roots[node], *[None] * (len(node.inputs) - 1)]
    if layout is not None and (node.domain, node.op_type) == (DOMAIN, "Attention") and layout.axes <= {0, 1, 2}:
        return [layout, *[None] * (len(node.inputs) - 1)]
    return None


def _taken(sections: Sections, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value]:
    return [op.Reshape(inputs[0], list(static_dims(node.outputs[0])))]


def _all_rows(count: int, op: Builder) -> ir.Value:
    return op.const(np.arange(count))
