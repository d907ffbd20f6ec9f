"""Writes through a detached name: all names of the memory read what was written, each with its own gradient.

`z.detach()` shows the memory of z without its gradient. torch, which makes a program functional, lets one name read
what was written through the other together with the writer's gradient. Here each detached name gets memory of its own,
and each write is carried to the other names as a value without a gradient.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import fx

from ontrain.capture.aliases import is_differentiable, memory, shares, written_to
from ontrain.capture.source import source_line
from ontrain.errors import CaptureError

__all__ = ["separate_detached"]

_DETACH = torch.ops.aten.detach.default
_clone, _copy_ = torch.ops.aten.clone.default, torch.ops.aten.copy_.default


@torch.library.custom_op("ontrain::revalued", mutates_args=())
def _revalued(x: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return new.clone()


@_revalued.register_fake
def _(x: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def separate_detached(graph: fx.Graph) -> None:
    """Give detached names of memory that is written to later memory of their own; carry each write to the other names.

    Args:
        graph: of a program as it was traced, with all blocks in one line; changed in place.

    Raises:
        CaptureError: what a write changes can be told from the layout of memory only.
    """
    order = {node: at for at, node in enumerate(graph.nodes)}
    writes = [(node, target) for node in graph.nodes for target in written_to(node) if is_differentiable(target)]
    last_write = {where: order[node] for node, target in writes for where in memory(target)}
    detached = [
        node
        for node in graph.nodes
        if node.target is _DETACH
        and is_differentiable(node)
        and any(order[node] < last_write.get(where, -1) for where in memory(node))
    ]
    if not detached:
        return
    parts = _Parts(graph, order, frozenset(detached))
    carried = [(node, parts.reached(node, target)) for node, target in writes if parts.holds(target)]
    for detach in detached:
        parts.separate(detach)
    for node, pairs in carried:
        parts.carry(node, pairs)


class _Parts:
    """Memory by the names that share a gradient: what an operator made, or a detached name, and the views of it.

    Args:
        graph: of the program.
        order: of its nodes.
        detached: the names that are to have memory of their own.
    """

    def __init__(self, graph: fx.Graph, order: dict[fx.Node, int], detached: frozenset[fx.Node]) -> None:
        self._graph, self._order, self._detached = graph, order, detached
        self._memory = frozenset(where for node in detached for where in memory(node))
        self._part: dict[fx.Node, fx.Node] = {}
        self._last_read: dict[fx.Node, int] = {}
        self._separated: dict[fx.Node, fx.Node] = {}
        self._views: dict[fx.Node, list[fx.Node]] = defaultdict(list)
        # From each part to the next: a name of the memory that both share in either.
        self._links: dict[fx.Node, list[tuple[fx.Node, fx.Node]]] = defaultdict(list)
        for node in graph.nodes:
            self._enter(node)

    def holds(self, node: fx.Node) -> bool:
        """Whether a tensor lies in memory that one of the detached names shows."""
        return not self._memory.isdisjoint(memory(node))

    def reached(self, write: fx.Node, target: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
        """Return where a write has to be carried, from what name to what name, in order.

        Parts that nobody reads after the write are left out.
        """
        at, start = self._order[write], self._part[target]
        came: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}
        waiting = [start]
        for part in waiting:
            for written, other in self._links[part]:
                beyond = self._part[other]
                if beyond is not start and beyond not in came and self._order[written] < at > self._order[other]:
                    came[beyond] = written, other
                    waiting.append(beyond)
        wanted = set[fx.Node]()
        for part in reversed(waiting[1:]):
            if part in wanted or part.op == "placeholder" or self._last_read.get(part, -1) > at:
                wanted.update((part, self._part[came[part][0]]))
        return [came[part] for part in waiting[1:] if part in wanted]

    def separate(self, detach: fx.Node) -> None:
        """Give a detached name, and the views of it, memory of their own."""
        for view in self._views[detach]:
            if view.target is torch.ops.aten.as_strided.default:
                raise _unknown(view, "as_strided of a detached tensor looks at memory that a graph does not have")
            if memory(view).isdisjoint(memory(detach)):  # a copy, which it stays in memory of any layout
                self._insert_behind(view)
        self._separated[detach] = self._insert_behind(detach)

    def carry(self, write: fx.Node, pairs: Iterable[tuple[fx.Node, fx.Node]]) -> None:
        """Have the other names read what was written, each with the gradient that it has."""
        last = write
        for written, other in pairs:
            if other not in self._detached and _overlaps(other.meta["val"]):
                raise _unknown(write, "elements of the detached tensor that is written to share their memory")
            target, new = (self._separated.get(name, name) for name in (other, written))
            with self._graph.inserting_after(last):
                value = self._graph.call_function(torch.ops.ontrain.revalued.default, (target, new))
            with self._graph.inserting_after(value):
                last = self._graph.call_function(_copy_, (target, value))
            for node in (value, last):
                node.meta = {**write.meta, "val": other.meta["val"]}

    def _enter(self, node: fx.Node) -> None:
        first = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        self._part[node] = node
        if first is not None and shares(node):
            if node in self._detached:
                self._links[self._part[first]].append((first, node))
                self._links[node].append((node, first))
            else:
                self._views[self._part[first]].append(node)
                if not memory(node).isdisjoint(memory(first)):
                    self._part[node] = self._part[first]
        for read in node.all_input_nodes:
            self._last_read[self._part[read]] = self._order[node]

    def _insert_behind(self, node: fx.Node) -> fx.Node:
        with self._graph.inserting_after(node):
            copy = self._graph.call_function(_clone, (node,))
        copy.meta = dict(node.meta)
        node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)
        return copy


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements of a view share their memory, as those of `expand` do."""
    reach = 1
    for step, size in sorted(zip(map(_size, tensor.stride()), map(_size, tensor.shape), strict=True)):
        if size > 1:
            if step < reach:
                return True
            reach = step * (size - 1) + reach
    return False


def _size(size: int | torch.SymInt) -> int:
    """A size as the sample has it: a comparison of the symbol would be a condition on it."""
    return size if isinstance(size, int) else int(size.node.hint)


def _unknown(node: fx.Node, reason: str) -> CaptureError:
    return CaptureError(
        "forward writes to memory that a tensor and a detached one share",
        source=source_line(node),
        reason=reason,
        way_out="write to a clone, or to the tensor itself",
    )
