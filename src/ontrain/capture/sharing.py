"""Results that are an argument itself, or a view of it, though the operator's schema does not say so."""

from __future__ import annotations

import torch
from torch import fx

from ontrain.capture.aliases import memory, mutates, shares, written_to
from ontrain.capture.aten.registry import operator_name, schema
from ontrain.capture.changes import ChangedStateError
from ontrain.capture.source import source_line
from ontrain.errors import CaptureError
from ontrain.internals import OpOverload, available

__all__ = ["say_shared"]

_DROPOUTS = frozenset({"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"})
_SAME = frozenset({"to", "type_as", "contiguous", "flatten", "positive", "conj", "resolve_conj", "resolve_neg", "real",
                   "atleast_1d", "atleast_2d", "atleast_3d"})  # fmt: skip
"""Operators that return their argument itself where they have nothing to do."""


def say_shared(graph: fx.Graph, state: frozenset[str] = frozenset()) -> None:
    """Have a program read an argument itself where eager returns it, so that a write to either is seen in both.

    Args:
        graph: of a program as it was traced; changed in place.
        state: its inputs that are buffers or frozen parameters. One that gets other memory is written to.

    Raises:
        CaptureError: a tensor is written to of which a result is a view that only eager knows of, or a tensor gets
            other memory.
    """
    exchanged = available("torch.ops.aten._has_compatible_shallow_copy_type")
    order = {node: at for at, node in enumerate(graph.nodes)}
    last_write = {where: write for write in graph.nodes for target in written_to(write) for where in memory(target)}
    for node in list(graph.nodes):
        if exchanged is not None and node.target is exchanged.default:
            _say_written(node, state)
            continue
        if not isinstance(node.target, OpOverload) or mutates(node):
            continue
        source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        if source is not None and (_drops_nothing(node, source) or _returns_itself(node, source)):
            node.replace_all_uses_with(source)
            graph.erase_node(node)
        elif not shares(node) and node.target is not torch.ops.ontrain.decide.default:  # which has its argument's meta
            for where in memory(node) & frozenset().union(*map(memory, node.all_input_nodes)):
                if where in last_write and order[last_write[where]] > order[node]:
                    raise _unsaid(node, last_write[where])


def _say_written(node: fx.Node, state: frozenset[str]) -> None:
    """Have `buffer.data = new` write the values, which is all that a graph can tell of it."""
    tensor, new = node.args
    if not isinstance(tensor, fx.Node) or not isinstance(new, fx.Node) or tensor.name not in state:
        raise _other_memory(node)
    if _form(tensor.meta["val"]) != _form(new.meta["val"]):
        raise _other_memory(node)
    with node.graph.inserting_before(node):
        detached = node.graph.call_function(torch.ops.aten.detach.default, (new,))
        write = node.graph.call_function(torch.ops.aten.copy_.default, (tensor, detached))
    detached.meta, write.meta = dict(new.meta), {**node.meta, "val": tensor.meta["val"]}
    node.graph.erase_node(node)


def _returns_itself(node: fx.Node, source: fx.Node) -> bool:
    """Whether an operator returned its first argument, as `x.to(x.dtype)` does."""
    if not isinstance(node.target, OpOverload) or operator_name(node.target) not in _SAME:
        return False
    return not _named(node).get("copy") and _form(node.meta["val"]) == _form(source.meta["val"])


def _drops_nothing(node: fx.Node, source: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload) or operator_name(node.target) not in _DROPOUTS:
        return False
    named = _named(node)
    return (not named.get("train") or named.get("p") == 0) and _form(node.meta["val"]) == _form(source.meta["val"])


def _named(node: fx.Node) -> dict[str, object]:
    assert isinstance(node.target, OpOverload)
    arguments = (argument.name for argument in schema(node.target).arguments)
    return dict(zip(arguments, node.args, strict=False)) | node.kwargs


def _form(tensor: torch.Tensor) -> list[str]:
    # As texts, for a comparison of sizes that vary would be a condition on them.
    properties = tensor.dtype, tensor.device, tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg()
    return [str(property) for property in properties]


def _unsaid(view: fx.Node, write: fx.Node) -> CaptureError:
    return CaptureError(
        f"forward writes to what {view.target} returned a view of",
        source=source_line(write),
        reason="the operator does not say that its result is a view, so a graph would not see the write in both",
        way_out="clone the result, or take the view by transpose, expand or select",
    )


def _other_memory(node: fx.Node) -> CaptureError:
    return ChangedStateError(
        "forward gives a tensor other memory, by `x.data = …`",
        source=source_line(node),
        reason="a graph has values, and no memory that could be exchanged",
        way_out="write x.detach().copy_(new), or go on with x + (new - x).detach(); if only the first call does, as to "
        "begin from the first batch, call the model once before it is wrapped",
    )
