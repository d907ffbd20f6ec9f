"""The order in which a step runs, with what is recomputed in its place, and the bytes that are alive at each node."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_ir as ir

from ontrain.functions import Flops, node_flops
from ontrain.graph import DOMAIN, Role, WorkingMemory, is_random, reads, role_of, subgraphs
from ontrain.operators import record_of

__all__ = ["Profile", "Schedule"]

Bytes = np.ndarray[tuple[int], np.dtype[np.int64]]

_BYTE = 10
"""Floating-point operations that a byte to or from memory costs as much time as: of the order of what CPUs do."""
_SMALL = 8
"""A value is kept rather than recomputed, if what is recomputed from it is this many times larger."""


@dataclass
class Copy:
    """A value computed a second time: from just before the node that reads it first to the one that reads it last."""

    first: int
    last: int


@dataclass
class Profile:
    """What is alive when: the outcome of a choice of values that are not kept for backward.

    Attributes:
        bytes: working memory at each node.
        copies: what is computed again, by root.
        last_reads: position of the last reader of each root that is computed once.
        first_backward: position at which each root's value is first wanted again.
    """

    bytes: Bytes
    copies: dict[ir.Value, Copy]
    last_reads: dict[ir.Value, int]
    first_backward: dict[ir.Value, int]

    @property
    def peak(self) -> int:
        """The most bytes alive at once."""
        return int(self.bytes.max(initial=0))

    @property
    def at(self) -> int:
        """The position at which they are."""
        return int(self.bytes.argmax()) if len(self.bytes) else 0


@dataclass
class Schedule:
    """A graph in its order, seen by memory: roots instead of values.

    Args:
        graph: concrete shapes; a step, or a forward graph with its backward pass.
        memory: where its values lie.
    """

    graph: ir.Graph
    memory: WorkingMemory
    nodes: list[ir.Node] = field(init=False)
    forward: set[ir.Node] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = list(self.graph)
        self.forward = _forward(self.graph)
        self.position = {node: i for i, node in enumerate(self.nodes)}
        self.end = len(self.nodes)
        self._read: list[list[ir.Value]] = [self._roots(reads(node)) for node in self.nodes]
        self._producer: dict[ir.Value, ir.Node] = {}
        self._costs: dict[ir.Node, int] = {}
        self._counted: dict[Hashable, Flops] = {}
        self._first_read: dict[ir.Value, int] = {}
        self._last_read: dict[ir.Value, int] = {}
        self._last_forward: dict[ir.Value, int] = {}
        for i, node in enumerate(self.nodes):
            for value in node.outputs:
                if value in self.memory.size:
                    self._producer[value] = node
            for root in self._read[i]:
                if node in self.forward:
                    self._last_forward[root] = i
                else:
                    self._first_read.setdefault(root, i)
                self._last_read[root] = i

    def _roots(self, values: Iterable[ir.Value]) -> list[ir.Value]:
        roots = (self.memory.root.get(v) for v in values)
        return list(dict.fromkeys(root for root in roots if root is not None and root in self.memory.size))

    def producer(self, root: ir.Value) -> ir.Node:
        """Return the node that computes a root."""
        return self._producer[root]

    def last_forward(self, root: ir.Value) -> int:
        """Return the position of the last node of the forward pass that makes or reads a root."""
        return self._last_forward.get(root, self.position[self._producer[root]])

    @property
    def read_by_backward(self) -> Mapping[ir.Value, int]:
        """Roots that backward reads in any case, and where first."""
        return self._first_read

    def bytes_of(self, root: ir.Value) -> int:
        """Return the bytes of a root."""
        return self.memory.size[root]

    @cached_property
    def crossing(self) -> list[ir.Value]:
        """The roots made going forward that backward reads, in order."""
        return [r for r, node in self._producer.items() if node in self.forward and r in self._first_read]

    def can_recompute(self, root: ir.Value) -> bool:
        """Whether a second run of the producer gives the same value: it draws no number, or its mask is kept."""
        node = self._producer[root]
        if node not in self.forward or subgraphs(node) or root in self.memory.lasting:
            return False
        mask = mask_of(node)
        if mask is not None:
            # A mask that nobody reads going backward is not there to be applied again.
            return root is not mask and bool(mask.uses())
        return not is_random(node)

    def sources(self, root: ir.Value) -> list[ir.Value]:
        """Return the roots that a second computation reads."""
        node = self._producer[root]
        mask = mask_of(node)
        values = [*reads(node), mask] if mask is not None else reads(node)
        return self._roots(values)

    def cost(self, node: ir.Node) -> int:
        """Return what running a node again costs, in floating-point operations: products, and bytes moved."""
        if node not in self._costs:
            moved = sum(self.memory.size.get(v, 0) for v in node.outputs)
            moved += sum(self.memory.size.get(self.memory.root.get(v, v), 0) for v in node.inputs if v is not None)
            self._costs[node] = self.flops(node).products + _BYTE * moved
        return self._costs[node]

    def flops(self, node: ir.Node) -> Flops:
        """Return the floating-point operations of a node."""
        return node_flops(node, self._counted)

    def keeps(self, root: ir.Value, reader: ir.Value) -> bool:
        """Whether a root that backward does not read itself had better live on than be computed again for `reader`."""
        return not self.can_recompute(root) or self.bytes_of(root) * _SMALL <= self.bytes_of(reader)

    def _goes_along(self, root: ir.Value, reader: ir.Value) -> bool:
        """Whether a root that nobody keeps for backward is computed again for `reader`."""
        made_forward = self._producer[root] in self.forward
        return made_forward and root not in self._first_read and not self.keeps(root, reader)

    def profile(self, dropped: Collection[ir.Value]) -> Profile:
        """Return what is alive when, if these roots are freed after forward and computed again for backward."""
        copies: dict[ir.Value, Copy] = {}
        last_read = dict(self._last_read)
        first: dict[ir.Value, int] = {}
        for root in dropped:
            last_read[root] = self.last_forward(root)

        def need(wanted: ir.Value, at: int) -> None:
            work: list[tuple[ir.Value, ir.Value | None]] = [(wanted, None)]
            while work:
                root, reader = work.pop()
                first.setdefault(root, at)
                copy = copies.get(root)
                if copy is not None:
                    copy.last = at
                elif root in dropped or (reader is not None and self._goes_along(root, reader)):
                    copies[root] = Copy(at, at)
                    work += [(source, root) for source in self.sources(root)]
                else:
                    last_read[root] = max(last_read.get(root, 0), at)

        for i in range(self.end):
            if self.nodes[i] not in self.forward:
                for root in self._read[i]:
                    need(root, i)
        return Profile(self._alive(copies, last_read), copies, last_read, first)

    def _alive(self, copies: dict[ir.Value, Copy], last_read: dict[ir.Value, int]) -> Bytes:
        change = np.zeros(self.end + 2, np.int64)
        for root, node in self._producer.items():
            size = self.memory.size[root]
            born = self.position[node]
            last = self.end if root in self.memory.lasting else max(last_read.get(root, born), born)
            change[born] += size
            change[last + 1] -= size
        for root, copy in copies.items():
            change[copy.first] += self.memory.size[root]
            change[copy.last + 1] -= self.memory.size[root]
        change[: self.end + 1] += self._scratch_changes
        for i, size, roots in self._in_place:
            for root in roots:
                if self._dies(root, i, copies, last_read):
                    change[i] -= size
                    change[i + 1] += size
                    break
        return np.cumsum(change)[: self.end]

    def _dies(self, root: ir.Value, at: int, copies: dict[ir.Value, Copy], last_read: dict[ir.Value, int]) -> bool:
        """Whether the value of a root that a node reads is read by no later one."""
        if root in copies:
            return copies[root].last == at and copies[root].first < at
        return last_read.get(root) == at and root not in self.memory.lasting

    @cached_property
    def _in_place(self) -> list[tuple[int, int, list[ir.Value]]]:
        """Nodes that may overwrite operands: position, bytes of the result, and the roots that are as large."""
        sizes = self.memory.size
        places = []
        for i, node in enumerate(self.nodes):
            overwrites = record_of(node).overwrites
            if overwrites and node.outputs[0] in sizes:
                size = sizes[node.outputs[0]]
                operands = (v for index, v in enumerate(node.inputs) if v is not None and index in overwrites)
                places.append((i, size, [root for root in self._roots(operands) if sizes[root] == size]))
        return places

    @cached_property
    def _scratch_changes(self) -> Bytes:
        change = np.zeros(self.end + 1, np.int64)
        for node, scratch in self.memory.scratch.items():
            change[self.position[node]] += scratch
            change[self.position[node] + 1] -= scratch
        return change


def mask_of(node: ir.Node) -> ir.Value | None:
    """Return the dropout mask that a node draws and hands out, None if it draws none."""
    if (node.domain, node.op_type) == ("", "Dropout") and len(node.outputs) == 2:
        return node.outputs[1] if is_random(node) else None
    if (node.domain, node.op_type) == (DOMAIN, "Attention") and len(node.outputs) == 3:
        return node.outputs[2] if is_random(node) else None
    return None


def _forward(graph: ir.Graph) -> set[ir.Node]:
    """The nodes of the model itself: those behind outputs that no learning rate, loss scale or adjoint reaches."""
    reached: set[ir.Value] = {v for v in graph.inputs if role_of(v) in (Role.HYPER, Role.ADJOINT)}
    for node in graph:
        if any(v in reached for v in reads(node)):
            reached.update(node.outputs)
    needed = {v for v in graph.outputs if v not in reached}
    nodes: set[ir.Node] = set()
    for node in reversed(graph):
        if any(v in needed for v in node.outputs):
            nodes.add(node)
            needed.update(reads(node))
    return nodes
