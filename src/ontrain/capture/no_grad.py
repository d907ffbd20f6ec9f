"""Values computed under torch.no_grad, cut off from their gradients in the graph itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from ontrain.capture.aliases import mutates
from ontrain.capture.aten.registry import is_view, operator_name, schema
from ontrain.capture.source import source_line
from ontrain.errors import CaptureError
from ontrain.internals import OpOverload, private, replaced

__all__ = ["detached_no_grad"]

_PASS = "torch._export.passes.replace_set_grad_with_hop_pass.replace_set_grad_with_hop_pass"
_DETACH = torch.ops.aten.detach.default
_SAME = frozenset({"to", "type_as", "contiguous", "flatten", "dropout", "alpha_dropout", "feature_dropout", "positive",
                   "feature_alpha_dropout", "conj", "resolve_conj", "resolve_neg", "real", "atleast_1d", "atleast_2d",
                   "atleast_3d"})  # fmt: skip
"""Operators that return their argument itself where they have nothing to do."""


@contextmanager
def detached_no_grad() -> Iterator[None]:
    """Have torch.export put a detach behind what a no_grad block computes and others read.

    torch makes an inner program of the block, which whoever inlines it loses; within autocast torch loses it itself.
    """
    replacing, exporting = private(_PASS), threading.get_ident()

    def detaching(module: fx.GraphModule, signature: Any) -> Any:
        if threading.get_ident() == exporting:
            _detach(module, frozenset(signature.inputs_to_parameters))
        return replacing(module, signature)

    with replaced({_PASS: detaching}):
        yield


def _detach(module: fx.GraphModule, parameters: frozenset[str]) -> None:
    block = _Block(module.graph, torch.is_grad_enabled(), parameters)
    for node in list(module.graph.nodes):
        inner = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(inner, fx.GraphModule):
            _detach(inner, frozenset())
        block.pass_by(node)
    block.drop_unread()
    module.recompile()


class _Block:
    """Goes through a program's nodes in order, in and out of its no_grad blocks.

    Args:
        graph: of the program.
        enabled: whether gradients are recorded where it begins.
        parameters: which of its inputs are the module's parameters.
    """

    def __init__(self, graph: fx.Graph, enabled: bool, parameters: frozenset[str]) -> None:
        self._graph, self._enabled, self._parameters = graph, enabled, parameters
        self._inside: list[fx.Node] = []
        self._outside: dict[fx.Node, fx.Node] = {}  # what stands for a value of a block outside of it
        self._with_gradient: set[fx.Node] = set()
        self._views: set[fx.Node] = set()  # made in the block, of values that have a gradient

    def pass_by(self, node: fx.Node) -> None:
        if node.target is private("torch._C._set_grad_enabled"):
            self._switch(node, bool(node.args[0]))
        elif node.op == "placeholder":
            if node.name in self._parameters:
                self._with_gradient.add(node)
        elif self._enabled or node.op == "output":
            node.args = fx.map_arg(node.args, self._seen_outside)
            node.kwargs = fx.map_arg(node.kwargs, self._seen_outside)
            if _is_float(node) and node.target is not _DETACH and self._reads_gradient(node):
                self._with_gradient.add(node)
        elif _is_float(node):
            self._compute_inside(node)

    def drop_unread(self) -> None:
        """Take back what nobody reads."""
        for stand_in in dict.fromkeys(reversed(self._outside.values())):
            if not stand_in.users:
                self._graph.erase_node(stand_in)

    def _switch(self, node: fx.Node, enabled: bool) -> None:
        if enabled and not self._enabled:
            for value in self._inside:
                with self._graph.inserting_before(node):
                    self._outside[value] = self._graph.call_function(_DETACH, (value,))
                self._outside[value].meta = dict(value.meta)
            self._inside.clear()
        self._enabled = enabled

    def _seen_outside(self, value: fx.Node) -> fx.Node:
        return self._outside.get(value, value)

    def _reads_gradient(self, node: fx.Node) -> bool:
        return not self._with_gradient.isdisjoint(node.all_input_nodes)

    def _compute_inside(self, node: fx.Node) -> None:
        source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        if source is not None and source not in self._inside and _is_same(node, source):
            if source in self._outside:
                self._outside[node] = self._outside[source]
            elif source in self._with_gradient:
                self._with_gradient.add(node)
            return
        if source in self._with_gradient or source in self._views:
            if mutates(node) and source.name not in self._parameters:  # the walk refuses that, by the parameter's name
                raise _straight_through(node)
            if is_view(node.target):
                self._views.add(node)
        self._inside.append(node)


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _is_same(node: fx.Node, source: fx.Node) -> bool:
    """Whether an operator returned the tensor that it was given, which has its gradient outside of the block, too."""
    if not isinstance(node.target, OpOverload) or operator_name(node.target) not in _SAME:
        return False
    named = (
        dict(zip((argument.name for argument in schema(node.target).arguments), node.args, strict=False)) | node.kwargs
    )
    if named.get("copy") or named.get("train"):
        return False
    return _form(node.meta["val"]) == _form(source.meta["val"])


def _form(tensor: torch.Tensor) -> list[str]:
    # As texts, for a comparison of sizes that vary would be a condition on them.
    return [str(property) for property in (tensor.dtype, tensor.device, tuple(tensor.shape), tensor.stride())]


def _straight_through(node: fx.Node) -> CaptureError:
    return CaptureError(
        "forward changes a tensor in place under torch.no_grad that has a gradient",
        source=source_line(node),
        reason="eager's gradient passes such a change by, and a graph's would end there",
        way_out="for that gradient write y = x + (changed - x).detach(); for none x.detach() before the block",
    )
