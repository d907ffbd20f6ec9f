"""How rows flow through operators: where they come from, and the same operator on rows packed into one axis.

An operator's record says where its rows come from; here is what follows for packed ones. An operator whose record
says nothing mixes rows, or is not known to keep them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder, static_dims
from ontrain.operators import Rows, attribute_of, operand_of, record_of
from ontrain.passes.rows.layout import Layout, Places, reshaped

__all__ = ["Packing", "behind", "cut", "find_row_rule", "sources"]

Sources = Callable[[ir.Node, Layout], "list[Layout | None] | None"]
"""sources(node, layout of the outputs): for each input its layout, None where no row lies in it; None if rows mix."""


@dataclass(frozen=True)
class Packing:
    """A row-wise node about to be made again on packed rows.

    Attributes:
        op: builder of the new graph.
        node: the node of the old one.
        inputs: new inputs: packed, [rows, …], where `packed` says so, else whole.
        packed: for each input whether it holds rows.
        lead: how many leading axes of the old outputs hold the rows.
        rows: how many there are.
    """

    op: Builder
    node: ir.Node
    inputs: Sequence[ir.Value | None]
    packed: Sequence[bool]
    lead: int
    rows: int

    @property
    def rest(self) -> tuple[int, ...]:
        """What follows the rows in the shape of the (first) output."""
        return static_dims(self.node.outputs[0])[self.lead :]

    @property
    def rank(self) -> int:
        """Rank of the old first output."""
        return self.lead + len(self.rest)

    def again(self, inputs: Sequence[ir.Value | None], **changed: int) -> list[ir.Value]:
        """Make the node on other inputs, with some attributes changed."""
        attributes = [attr for name, attr in self.node.attributes.items() if name not in changed]
        attributes += [ir.AttrInt64(name, value) for name, value in changed.items()]
        copy = ir.Node(
            self.node.domain, self.node.op_type, inputs, attributes, num_outputs=len(self.node.outputs)
        )  # fmt: skip
        outputs = self.op.add(copy, [v.name for v in self.node.outputs])
        return list(outputs) if isinstance(outputs, tuple) else [outputs]

    def aligned(self, index: int) -> ir.Value | None:
        """Return an input such that its last axes are those of the output behind the rows.

        What goes are axes of one place: of a whole input those along which others hold rows, of a packed one those
        between its last row axis and the output's.
        """
        value, rank = self.inputs[index], len(self.rest) + self.packed[index]
        if value is None or len(static_dims(value)) <= rank:
            return value
        shape = static_dims(value)
        lead = [self.rows] if self.packed[index] else []
        lifted: ir.Value = self.op.Reshape(value, lead + list(shape[len(shape) - len(self.rest) :]))
        return lifted


Emit = Callable[[Packing], "list[ir.Value]"]


@dataclass(frozen=True)
class _Rule:
    sources: Sources
    emit: Emit


def find_row_rule(node: ir.Node) -> _Rule | None:
    """Return how rows flow through a node, None if they mix in it."""
    return _RULES.get(record_of(node).rows)


def sources(node: ir.Node, layout: Layout) -> list[Layout | None] | None:
    """Return where the rows of a node's outputs come from: a layout for each input that holds rows, else None.

    Returns None if the operator mixes rows.
    """
    rule = find_row_rule(node)
    layouts = rule.sources(node, layout) if rule is not None else None
    return None if layouts is None else [layout if layout else None for layout in layouts]


def behind(node: ir.Node, lead: int) -> bool:
    """Whether a row-wise node leaves the first `lead` axes of its first input alone but for cutting rows."""
    rows = record_of(node).rows
    if rows is Rows.TRANSPOSED:
        return sorted(_perm(node)[:lead]) == list(range(lead))
    if rows is Rows.REDUCED:
        return min(_reduction_axes(node) or [lead]) >= lead
    if rows in (Rows.ALONG_AXIS, Rows.FROM_AXIS, Rows.JOINED):
        return _axis(node) >= lead
    return True


# Every operand aligned at the last axis, as numpy broadcasts.


def _broadcast(node: ir.Node, layout: Layout) -> list[Layout | None]:
    rank = len(static_dims(node.outputs[0]))
    layouts: list[Layout | None] = []
    for value in node.inputs:
        if value is None:
            layouts.append(None)
            continue
        shape = static_dims(value)
        shift = rank - len(shape)
        here = {a: a - shift for a in layout.places if a >= shift and shape[a - shift] != 1}
        layouts.append(layout.moved(here))
    return layouts


def _elementwise(p: Packing) -> list[ir.Value]:
    return p.again([p.aligned(i) for i in range(len(p.inputs))])


# Operators on the first input alone, along axes behind the rows.


def _first(node: ir.Node, first: Layout | None) -> list[Layout | None]:
    return [first, *[None] * (len(node.inputs) - 1)]


def _along(node: ir.Node, layout: Layout) -> list[Layout | None] | None:
    """An operator along one axis that keeps the shape before it."""
    return None if _axis(node) in layout.axes else _first(node, layout)


def _from_axis(node: ir.Node, layout: Layout) -> list[Layout | None] | None:
    """An operator over one axis and those behind it."""
    return None if any(a >= _axis(node) for a in layout.axes) else _first(node, layout)


def _axis(node: ir.Node) -> int:
    x = node.inputs[0]
    assert x is not None
    return int(attribute_of(node, "axis")) % len(static_dims(x))


def _from_the_end(p: Packing) -> list[ir.Value]:
    """The axis counted from the last, where packing changes nothing."""
    x = p.node.inputs[0]
    assert x is not None
    return p.again(p.inputs, axis=_axis(p.node) - len(static_dims(x)))


def _matmul(node: ir.Node, layout: Layout) -> list[Layout | None] | None:
    x, w = node.inputs
    assert x is not None and w is not None
    rank = len(static_dims(node.outputs[0]))
    if len(static_dims(w)) != 2 or len(static_dims(x)) != rank or rank - 1 in layout.axes:
        return None
    return [layout, None]


def _gemm(node: ir.Node, layout: Layout) -> list[Layout | None] | None:
    if node.attributes.get_int("transA", 0) or layout.axes != {0}:
        return None
    bias = operand_of(node, 2)
    shape = static_dims(bias) if bias is not None else ()
    return [layout, None, *([layout if len(shape) == 2 and shape[0] != 1 else None] if len(node.inputs) > 2 else [])]


def _again(p: Packing) -> list[ir.Value]:
    return p.again(p.inputs)


def _reduction_axes(node: ir.Node) -> list[int] | None:
    x = node.inputs[0]
    assert x is not None
    rank = len(static_dims(x))
    ratio = operand_of(node, 1)
    if ratio is None:
        return [] if node.attributes.get_int("noop_with_empty_axes", 0) else list(range(rank))
    if ratio.const_value is None:
        return None
    return sorted(int(a) % rank for a in ratio.const_value.numpy().reshape(-1))


def _reduce(node: ir.Node, layout: Layout) -> list[Layout | None] | None:
    x, axes = node.inputs[0], _reduction_axes(node)
    assert x is not None
    if axes is None:
        return None
    keep = bool(node.attributes.get_int("keepdims", 1))
    left = [a for a in range(len(static_dims(x))) if keep or a not in axes]
    source = layout.moved(dict(enumerate(left)))
    return None if source.axes & set(axes) else _first(node, source)


def _reduced(p: Packing) -> list[ir.Value]:
    x, axes = p.node.inputs[0], _reduction_axes(p.node)
    assert x is not None and axes is not None
    rank = len(static_dims(x))
    return p.again([p.inputs[0], p.op.const(np.array([a - rank for a in axes], np.int64))])


# Operators that move rows.


def _reshape(node: ir.Node, layout: Layout) -> list[Layout | None] | None:
    x = node.inputs[0]
    assert x is not None
    source = reshaped(layout, static_dims(node.outputs[0]), static_dims(x))
    return None if source is None else _first(node, source)


def _reshaped(p: Packing) -> list[ir.Value]:
    return [p.op.Reshape(p.inputs[0], [p.rows, *p.rest])]


def _expand(node: ir.Node, layout: Layout) -> list[Layout | None]:
    return [_broadcast(node, layout)[0], None]


def _expanded(p: Packing) -> list[ir.Value]:
    return [p.op.Expand(p.aligned(0), [p.rows, *p.rest])]


def _perm(node: ir.Node) -> list[int]:
    perm = node.attributes.get("perm")
    return list(perm.as_ints()) if perm is not None else list(range(len(static_dims(node.outputs[0]))))[::-1]


def _transpose(node: ir.Node, layout: Layout) -> list[Layout | None]:
    return [layout.moved(dict(enumerate(_perm(node))))]


def _transposed(p: Packing) -> list[ir.Value]:
    """The axes behind the rows in their new order; an axis of one place that was among the rows' may follow them."""
    x, perm = p.inputs[0], _perm(p.node)
    assert x is not None
    lead = len(perm) + 1 - len(static_dims(x))
    rest = perm[lead:]
    order = sorted(rest)
    turned = p.op.Transpose(x, perm=[0, *(1 + order.index(a) for a in rest)])
    return [turned if lead == p.lead else p.op.Reshape(turned, [p.rows, *p.rest])]


def _join(node: ir.Node, layout: Layout) -> list[Layout | None] | None:
    rank = len(static_dims(node.outputs[0]))
    if node.attributes["axis"].as_int() % rank in layout.axes:
        return None
    layouts = [_broadcast_one(value, layout) for value in node.inputs]
    return None if any(operand.axes != layout.axes for operand in layouts) else list(layouts)


def _broadcast_one(value: ir.Value | None, layout: Layout) -> Layout:
    assert value is not None
    return layout.moved({a: a for a in layout.places if static_dims(value)[a] != 1})


def cut(node: ir.Node) -> dict[int, Places] | None:
    """Return for each axis that a Slice or a Gather by constants cuts the places that remain; None if not known."""
    x = node.inputs[0]
    assert x is not None
    shape = static_dims(x)
    if node.op_type == "Gather":
        indices = node.inputs[1]
        if indices is None or indices.const_value is None or len(static_dims(indices)) > 1:
            return None
        axis = node.attributes.get_int("axis", 0) % len(shape)
        return {axis: np.asarray(indices.const_value.numpy()).reshape(-1) % shape[axis]}
    bounds = [*node.inputs[1:], None, None][:4]
    if any(v is not None and v.const_value is None for v in bounds):
        return None
    starts, ends, axes, steps = (
        None if v is None or v.const_value is None else [int(i) for i in v.const_value.numpy().reshape(-1)]
        for v in bounds
    )
    assert starts is not None and ends is not None
    axes = list(range(len(starts))) if axes is None else [a % len(shape) for a in axes]
    steps = [1] * len(starts) if steps is None else steps
    if any(step < 1 for step in steps):
        return None
    return {
        axis: np.arange(shape[axis])[start:end:step]
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True)
    }


def _slice(node: ir.Node, layout: Layout) -> list[Layout | None] | None:
    taken = cut(node)
    if taken is None:
        return None
    moved = {a: taken[a][p] if a in taken else p for a, p in layout.places.items()}
    return _first(node, layout.derived(moved))


def _sliced(p: Packing) -> list[ir.Value]:
    """Rows were cut when they were packed; what is cut behind them still has to be."""
    taken = {a - p.rank: places for a, places in (cut(p.node) or {}).items() if a >= p.lead}
    value = p.inputs[0]
    assert value is not None
    if not taken:
        return [value]
    steps = [int(t[1] - t[0]) if len(t) > 1 else 1 for t in taken.values()]
    return [
        p.op.Slice(
            value, np.array([int(t[0]) for t in taken.values()]), np.array([int(t[-1]) + 1 for t in taken.values()]),
            np.array(list(taken)), np.array(steps),
        )
    ]  # fmt: skip


def _lookup(node: ir.Node, layout: Layout) -> list[Layout | None] | None:
    """Rows of a table by ids: the rows are the ids'."""
    weight, ids = node.inputs
    assert weight is not None and ids is not None
    if node.op_type == "Gather" and node.attributes.get_int("axis", 0) % len(static_dims(weight)) != 0:
        return None
    inside = all(a < len(static_dims(ids)) for a in layout.places)
    return [None, layout] if inside else None


_RULES: dict[Rows, _Rule] = {
    Rows.ALONG_AXIS: _Rule(_along, _from_the_end),
    Rows.CUT: _Rule(_slice, _sliced),
    Rows.ELEMENTWISE: _Rule(_broadcast, _elementwise),
    Rows.EXPANDED: _Rule(_expand, _expanded),
    Rows.FROM_AXIS: _Rule(_from_axis, _from_the_end),
    Rows.GEMM: _Rule(_gemm, _again),
    Rows.JOINED: _Rule(_join, _from_the_end),
    Rows.LOOKED_UP: _Rule(_lookup, _again),
    Rows.MATMUL: _Rule(_matmul, _again),
    Rows.REDUCED: _Rule(_reduce, _reduced),
    Rows.RESHAPED: _Rule(_reshape, _reshaped),
    Rows.TRANSPOSED: _Rule(_transpose, _transposed),
}
