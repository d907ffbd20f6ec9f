"""The part of a graph that works on rows: found from its readers upwards, made again on fewer rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder, live_nodes, reads, role_of, static_dims
from ontrain.operators import each, record_of
from ontrain.passes.rows.layout import Layout, Places
from ontrain.passes.rows.operators import Packing, behind, find_row_rule, sources

__all__ = ["WHOLE", "Demand", "Index", "Reader", "Section", "Sections", "find_section"]


class _Whole:
    """All of a value is read, in a way that may mix rows."""


WHOLE: Final = _Whole()
Demand = Layout | _Whole | None
Reader = Callable[[ir.Node, Layout | None], Sequence[Demand] | None]
"""reader(node, layout of its outputs if some rows of them are enough): what it demands of its inputs where that differs
from what the table of operators says; None for no opinion."""


@dataclass
class Section:
    """Which nodes may work on packed rows.

    Attributes:
        packed: these nodes, and for each input the layout of the rows in it, or None.
        states: of each value that is read, the layout of the rows that are enough, or `WHOLE`.
        spoiled: readers that asked for some rows of a value all of which someone else reads.
    """

    packed: dict[ir.Node, list[Layout | None]] = field(default_factory=dict)
    states: dict[ir.Value, Layout | _Whole] = field(default_factory=dict)
    spoiled: set[ir.Node] = field(default_factory=set)

    def products(self) -> int:
        """Multiplications with a matrix that work on packed rows."""
        return sum(record_of(node).product for node in self.packed)

    def holds(self, value: ir.Value | None) -> bool:
        """Whether a value is made on packed rows."""
        return value is not None and value.producer() in self.packed


def find_section(graph: ir.Graph, reader: Reader) -> Section:
    """Walk the graph from its outputs up, and find what may work on fewer rows.

    A node may if rows do not mix in it, its operands hold rows along leading axes, and every reader of its results
    is content with the same rows.
    """
    nodes, demands = live_nodes(graph), _Demands(graph, reader)
    for node in reversed(nodes):
        demands.visit(node)
    section = demands.section
    for node in nodes:
        layouts = demands.layouts.get(node)
        if layouts is not None and _may_pack(node, layouts, section.states):
            section.packed[node] = [layout if isinstance(layout, Layout) else None for layout in layouts]
    return section


class _Demands:
    """What the readers of each value ask of it, collected from the outputs of a graph up.

    Attributes:
        section: with its states, and the readers that were spoiled.
        layouts: for each node whose operands may hold fewer rows, what it demands of them.
    """

    def __init__(self, graph: ir.Graph, reader: Reader) -> None:
        self.section = Section(states=dict.fromkeys(graph.outputs, WHOLE))
        self.layouts: dict[ir.Node, Sequence[Demand]] = {}
        self._reader, self._learned = reader, _learned(graph)
        # The readers with an opinion that a value has some of its rows read for.
        self._askers: dict[ir.Value, set[ir.Node]] = defaultdict(set)

    def visit(self, node: ir.Node) -> None:
        """Take up what a node demands, once all readers of its results have been visited."""
        demanded = [v for v in node.outputs if v in self.section.states]
        layout = _common([self.section.states[v] for v in demanded])
        askers = set[ir.Node]().union(*(self._askers[v] for v in demanded))
        if layout is None:
            self.section.spoiled |= askers
        layouts = self._reader(node, layout)
        if layouts is not None:
            askers.add(node)
        elif layout is not None:
            layouts = sources(node, layout)
        if layouts is None:
            for value in reads(node):
                self._demand(value, WHOLE)
            return
        self.layouts[node] = layouts
        for operand, wanted in zip(node.inputs, layouts, strict=True):
            if operand is not None:
                self._demand(operand, self._worthwhile(operand, wanted), askers)

    def _worthwhile(self, value: ir.Value, wanted: Demand) -> Layout | _Whole:
        """All of ids, of masks, and of what has fewer places than there are rows: rows of them are taken here."""
        if isinstance(wanted, Layout) and value in self._learned and wanted.injective(static_dims(value)):
            return wanted
        return WHOLE

    def _demand(self, value: ir.Value, wanted: Layout | _Whole, askers: Iterable[ir.Node] = ()) -> None:
        if isinstance(wanted, Layout):
            self._askers[value].update(askers)
        before = self.section.states.setdefault(value, wanted)
        if before is not wanted and (before is WHOLE or wanted is WHOLE or before != wanted):
            self.section.states[value] = WHOLE
        if self.section.states[value] is WHOLE:
            self.section.spoiled |= self._askers[value]


def _learned(graph: ir.Graph) -> set[ir.Value]:
    """The values that depend on what stays from step to step: all others are cheap."""
    resident = {v for v in graph.inputs if role_of(v).resident}
    for node in graph:
        if any(v in resident for v in reads(node)):
            resident.update(node.outputs)
    return resident


def _common(states: Sequence[Layout | _Whole]) -> Layout | None:
    """The one layout of all results, None if all of one is read or they differ."""
    first = states[0] if states else None
    if not isinstance(first, Layout):
        return None
    return first if all(isinstance(state, Layout) and state == first for state in states) else None


def _may_pack(node: ir.Node, wants: Sequence[Demand], states: Mapping[ir.Value, Layout | _Whole]) -> bool:
    if find_row_rule(node) is None:
        return False
    for value in node.outputs:
        state = states.get(value)
        if state is not None and (not isinstance(state, Layout) or state.lead(static_dims(value)) is None):
            return False
    for read, wanted in zip(node.inputs, wants, strict=True):
        if isinstance(wanted, Layout):
            assert read is not None
            lead = wanted.lead(static_dims(read))
            if lead is None or (read is node.inputs[0] and not behind(node, lead)):
                return False
    return True


class Index:
    """The numbers of the rows to keep, in the graph that is being made.

    Args:
        rows: how many rows there were.
        count: how many are kept, those that fill up included.
        make: emits the numbers, int64 [kept], none twice.
    """

    def __init__(self, rows: int, count: int, make: Callable[[Builder], ir.Value]) -> None:
        self.rows, self.kept, self._make = rows, count, make
        self._chosen: ir.Value | None = None
        self._at: dict[bytes, ir.Value] = {}
        self._back: dict[ir.Value, ir.Value] = {}

    def chosen(self, op: Builder) -> ir.Value:
        """The numbers themselves."""
        if self._chosen is None:
            self._chosen = self._make(op)
        return self._chosen

    def at(self, op: Builder, where: Places, places: int) -> ir.Value:
        """The kept rows' places among `places`, where row r lies at `where[r]`."""
        if places == self.rows and np.array_equal(where, np.arange(self.rows)):
            return self.chosen(op)
        key = where.tobytes()
        if key not in self._at:
            self._at[key] = op.Gather(op.const(where), self.chosen(op), axis=0)
        return self._at[key]

    def places(self, op: Builder, where: Places, places: int) -> ir.Value:
        """For each of `places` the number among the kept rows of the one that lies there, zero if none does."""
        at = self.at(op, where, places)
        if at not in self._back:
            numbers = op.const(np.arange(self.kept, dtype=np.int64))
            self._back[at] = op.ScatterElements(op.const(np.zeros(places, np.int64)), at, numbers, axis=0)
        return self._back[at]


class Sections:
    """Rewrites a graph so that a section works on packed rows; fits `ontrain.graph.rebuild`.

    Args:
        section: what to pack.
        index: the rows to keep.
        sinks: the readers that take packed rows by themselves: given this, the builder, the node and its new inputs,
            they return new outputs, or None to be copied.
    """

    def __init__(
        self, section: Section, index: Index,
        sinks: Mapping[ir.Node, Callable[[Sections, Builder, ir.Node, list[ir.Value | None]], list[ir.Value] | None]],
    ) -> None:  # fmt: skip
        self.section, self.index, self._sinks = section, index, sinks
        self.made: dict[ir.Value, ir.Value] = {}
        """For values of the old graph that are packed, the packed ones."""
        self._whole: dict[ir.Value, ir.Value] = {}
        self._packed: dict[tuple[ir.Value, bytes], ir.Value] = {}

    def __call__(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Sequence[ir.Value | None] | None:
        """Return the new outputs of a node: packed ones for a node of the section."""
        if not any(v in self.section.states for v in node.outputs):
            return [None] * len(node.outputs)  # read by nothing but a node that the section does without
        layouts = self.section.packed.get(node)
        if layouts is not None:
            outputs = self._pack(op, node, layouts, inputs)
            self.made.update(zip(node.outputs, outputs, strict=True))
            return outputs
        sink = self._sinks.get(node)
        written = sink(self, op, node, inputs) if sink is not None else None
        if written is not None:
            return written
        if not any(self.section.holds(v) for v in node.inputs):
            return None
        whole = [self.whole(op, old, new) for old, new in zip(node.inputs, inputs, strict=True)]
        copy = ir.Node(node.domain, node.op_type, whole, node.attributes.values(), num_outputs=len(node.outputs))
        return each(op.add(copy, [v.name for v in node.outputs]))

    def rows(self, op: Builder, old: ir.Value, new: ir.Value, layout: Layout) -> ir.Value:
        """Return the kept rows of a value, [kept, …]."""
        if self.section.holds(old):
            return new
        shape = static_dims(old)
        lead, where = layout.lead(shape), layout.flat(shape)
        key = (new, where.tobytes())
        if key not in self._packed:
            places = math.prod(shape[:lead])
            flat = new if lead == 1 else op.Reshape(new, [places, *shape[lead:]])
            at = self.index.at(op, where, places)
            # A place that several rows share, as the positions of a batch, sums their gradients.
            alone = layout.injective(shape)
            self._packed[key] = op.composite("PackRows", flat, at) if alone else op.Gather(flat, at, axis=0)
        return self._packed[key]

    def whole(self, op: Builder, old: ir.Value | None, new: ir.Value | None) -> ir.Value | None:
        """Return all rows of a value; those that were not computed are copies of one that was."""
        if old is None or new is None or not self.section.holds(old):
            return new
        if old not in self._whole:
            layout, shape = self.section.states[old], static_dims(old)
            assert isinstance(layout, Layout)
            lead, where = layout.lead(shape), layout.flat(shape)
            places = math.prod(shape[:lead])
            at, back = self.index.at(op, where, places), self.index.places(op, where, places)
            spread = op.composite("SpreadRows", new, back, at)
            self._whole[old] = spread if lead == 1 else op.Reshape(spread, list(shape))
        return self._whole[old]

    def _pack(
        self, op: Builder, node: ir.Node, layouts: Sequence[Layout | None], inputs: Sequence[ir.Value | None]
    ) -> list[ir.Value]:
        rule = find_row_rule(node)
        assert rule is not None
        taken: list[ir.Value | None] = []
        for old, new, layout in zip(node.inputs, inputs, layouts, strict=True):
            if old is None or new is None:
                taken.append(None)
            else:
                taken.append(self.rows(op, old, new, layout) if layout is not None else self.whole(op, old, new))
        value, state = next((v, s) for v in node.outputs if (s := self.section.states.get(v)) is not None)
        assert isinstance(state, Layout)
        lead = state.lead(static_dims(value))
        assert lead is not None
        packed = [layout is not None for layout in layouts]
        return rule.emit(Packing(op, node, taken, packed, lead, self.index.kept))
