"""Who shares memory with whom in a program, so that a write is seen under every name of what it writes to."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from ontrain.capture.aten.registry import is_view, schema
from ontrain.capture.aten.writing import is_followed
from ontrain.internals import OpOverload, available, of, private

__all__ = [
    "Aliases", "canonical", "is_differentiable", "memory", "mutates", "shares", "written_arguments", "written_to",
]  # fmt: skip


def mutates(node: fx.Node) -> bool:
    """Whether a node writes to its first argument."""
    return isinstance(node.target, OpOverload) and schema(node.target).is_mutable


def written_arguments(node: fx.Node) -> list[tuple[str, int | None]]:
    """Return the arguments whose values a node changes in place: their names, and their places if they stand in order.

    It is the first as a rule, with `out=` another.
    """
    if not isinstance(node.target, OpOverload) or node.target is torch.ops.aten.detach_.default:
        return []
    return [
        (argument.name, at if at < len(node.args) else None)
        for at, argument in enumerate(schema(node.target).arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def written_to(node: fx.Node) -> list[fx.Node]:
    """Return the tensors whose values a node changes in place."""
    values = [node.kwargs.get(name) if at is None else node.args[at] for name, at in written_arguments(node)]
    tensors = (item for value in values for item in (value if isinstance(value, list | tuple) else [value]))
    return [tensor for tensor in tensors if isinstance(tensor, fx.Node)]


def canonical(node: fx.Node) -> fx.Node:
    """Return the node whose tensor this is: an in-place operator's result is its first argument."""
    while node.op == "call_function" and mutates(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def shares(node: fx.Node) -> bool:
    """Whether a node's result may lie in the memory of its first argument."""
    return node.op == "call_function" and (mutates(node) or is_view(node.target) or node.target is operator.getitem)


def memory(node: fx.Node) -> frozenset[int]:
    """Return what tells the memory of a node's tensors from other memory, as eager lays it out.

    It holds in a program that torch.export is still tracing, until the program is written anew.
    """
    storages = (_unwrapped(tensor).untyped_storage() for tensor in _tensors(node))
    return frozenset(of("torch.UntypedStorage._cdata", storage) for storage in storages)


def is_differentiable(node: fx.Node) -> bool:
    """Whether a node has a tensor, or tensors, of a dtype that gradients have."""
    return any(tensor.is_floating_point() or tensor.is_complex() for tensor in _tensors(node))


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    value: Any = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else [value]
    return [tensor for tensor in values if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided]


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that has the memory: one within torch.func's transforms is wrapped, once for each of them."""
    is_wrapped = available("torch._C._functorch.is_functorch_wrapped_tensor")
    while is_wrapped is not None and is_wrapped(tensor):
        tensor = private("torch._C._functorch.get_unwrapped")(tensor)
    return tensor


class Aliases:
    """The families of tensors that may share memory: a root, its views, views of these.

    Attributes:
        followed: whether every write can be carried from the view it goes through to its root, and from there to the
            views that are read later. Where not, torch has to make the program functional.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._order = {node: i for i, node in enumerate(graph.nodes)}
        self._root: dict[fx.Node, fx.Node] = {}
        self._family: dict[fx.Node, list[fx.Node]] = {}
        for node in graph.nodes:
            first = node.args[0] if node.args else None
            is_part = node.target is operator.getitem and isinstance(first, fx.Node) and not shares(first)
            self._root[node] = (
                self._root[first] if shares(node) and isinstance(first, fx.Node) and not is_part else node
            )
            self._family.setdefault(self._root[node], []).append(node)
        self.followed = all(self._is_followed(node) for node in graph.nodes if mutates(node))

    def root(self, node: fx.Node) -> fx.Node:
        """Return the tensor whose memory a node's is part of, as far as the program tells."""
        return self._root[node]

    def path(self, target: fx.Node) -> list[fx.Node]:
        """Return the views from a tensor that is written to up to its root, which is left out."""
        views = []
        node = canonical(target)
        while node is not self._root[target]:
            views.append(node)
            assert isinstance(node.args[0], fx.Node)
            node = canonical(node.args[0])
        return views

    def stale(self, write: fx.Node) -> list[fx.Node]:
        """Return the views made before a write and read after it, and the views these are made from, in order.

        The tensor written to is none of them.
        """
        target = canonical(write.all_input_nodes[0])
        at = self._order[write]
        wanted: set[fx.Node] = set()
        for node in self._family[self._root[target]]:
            if self._order[node] < at and any(self._order[user] > at for user in node.users):
                own = canonical(node)
                wanted.update(view for view in self.path(own) if view is not target)
        return sorted(wanted, key=self._order.__getitem__)

    def _is_followed(self, write: fx.Node) -> bool:
        target = write.args[0]
        if not isinstance(target, fx.Node):
            return False
        if torch.Tag.inplace_view in getattr(write.target, "tags", ()):  # unsqueeze_ changes this name's view alone
            return all(canonical(node) is canonical(target) for node in self._family[self._root[target]])
        return all(is_followed(node.target) for node in (*self.path(target), *self.stale(write)))
