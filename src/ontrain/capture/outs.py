"""Operators that write where they are told to: `torch.cumsum(x, 0, out=y[1:])`.

cumsum.out(x, 0, out=y)   →   copy_(y, cumsum(x, 0))
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from ontrain.capture.aten.registry import operator_name, schema, writes_first_only
from ontrain.capture.sympy_sizes import size_of
from ontrain.internals import OpOverload

__all__ = ["written_apart"]


def written_apart(graph: fx.Graph) -> None:
    """Write each operator with `out=` as one that returns its result, and a copy of the result into that place.

    An operator that would resize the place stays as it is.
    """
    for node in [*graph.nodes]:
        if node.op != "call_function" or not isinstance(node.target, OpOverload) or writes_first_only(node.target):
            continue
        names = [argument.name for argument in schema(node.target).arguments if _is_written(argument)]
        places = [node.kwargs.get(name) for name in names]
        target = _returning(node.target)
        if target is None or not all(isinstance(place, fx.Node) for place in places):
            continue
        values = node.meta["val"] if isinstance(node.meta["val"], tuple | list) else [node.meta["val"]]
        if all(_is_alike(place.meta["val"], value) for place, value in zip(places, values, strict=True)):
            _write(graph, node, target, names, places)


def _write(graph: fx.Graph, node: fx.Node, target: OpOverload, names: list[str], places: list[Any]) -> None:
    several = isinstance(node.meta["val"], tuple | list)
    with graph.inserting_before(node):
        rest = {name: value for name, value in node.kwargs.items() if name not in names}
        result = graph.call_function(target, node.args, rest)
        result.meta = dict(node.meta)
        copies = []
        for at, place in enumerate(places):
            part = result
            if several:
                part = graph.call_function(operator.getitem, (result, at))
                part.meta = {**node.meta, "val": node.meta["val"][at]}
            copy = graph.call_function(torch.ops.aten.copy_.default, (place, part))
            copy.meta = {**node.meta, "val": place.meta["val"]}
            copies.append(copy)
    if several:
        for user in [*node.users]:
            which: Any = user.args[1]
            user.replace_all_uses_with(copies[which])
            graph.erase_node(user)
    else:
        node.replace_all_uses_with(copies[0])
    graph.erase_node(node)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _returning(target: OpOverload) -> OpOverload | None:
    """The overload of an operator that takes the same arguments, and returns what `target` writes."""
    wanted = [(a.name, str(a.type)) for a in schema(target).arguments if not _is_written(a)]
    name, _, own = operator_name(target).rpartition("::")
    packet = getattr(getattr(torch.ops, name or "aten"), own)
    overloads: list[OpOverload] = [getattr(packet, overload) for overload in packet.overloads()]
    alike = (o for o in overloads if [(a.name, str(a.type)) for a in schema(o).arguments] == wanted)
    return next(alike, None)


def _is_alike(place: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether two tensors have one shape, as far as a trace knows."""
    return [_size(size) for size in place.shape] == [_size(size) for size in value.shape]


def _size(size: Any) -> Any:
    return size_of(size.node.expr) if isinstance(size, torch.SymInt) else size_of(size)
