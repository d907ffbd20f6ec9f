"""Values computed under torch.no_grad, cut off from their gradients in the graph itself."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from ontrain.capture.aliases import is_differentiable, memory, written_arguments, written_to
from ontrain.capture.autograd import traced_here
from ontrain.capture.detached import separate_detached
from ontrain.capture.sharing import say_shared
from ontrain.capture.source import source_line
from ontrain.errors import CaptureError
from ontrain.internals import private, replaced, substituted

__all__ = ["detached_no_grad", "inference_without_gradients"]

_PASS = "torch._export.passes.replace_set_grad_with_hop_pass.replace_set_grad_with_hop_pass"
_DETACH = torch.ops.aten.detach.default


@contextmanager
def detached_no_grad() -> Iterator[None]:
    """Have torch.export put a detach behind what a no_grad block computes and others read.

    torch makes an inner program of the block, which whoever inlines it loses; within autocast torch loses it itself.
    """
    replacing, exporting = private(_PASS), threading.get_ident()

    def detaching(module: fx.GraphModule, signature: Any) -> Any:
        if threading.get_ident() == exporting:
            buffers, constants = signature.inputs_to_buffers, signature.inputs_to_lifted_tensor_constants
            trained = {node.name for node in module.graph.find_nodes(op="placeholder") if _wants_gradient(node)}
            state = frozenset((*buffers, *signature.inputs_to_parameters)) - trained
            _detach(module, frozenset((*buffers, *constants)) - trained, state)
            outputs: Any = module.graph.output_node().args[0]
            for spec, output in zip(signature.output_specs, outputs, strict=True):
                if isinstance(output, fx.Node):
                    spec.arg.name = output.name
        return replacing(module, signature)

    with replaced({_PASS: detaching}):
        yield


@contextmanager
def inference_without_gradients() -> Iterator[None]:
    """Have a block under torch.inference_mode in forward traced as one under no_grad: torch leaves no trace of it."""
    begin, end = torch.inference_mode.__enter__, torch.inference_mode.__exit__
    begun: dict[int, torch.set_grad_enabled] = {}

    def enter(self: torch.inference_mode) -> None:
        if traced_here():
            begun[id(self)] = torch.set_grad_enabled(not self.mode)
        else:
            begin(self)

    def leave(self: torch.inference_mode, *error: Any) -> None:
        mode = begun.pop(id(self), None)
        if mode is None:
            end(self, *error)
        else:
            mode.__exit__(*error)

    with substituted([(torch.inference_mode, "__enter__", enter), (torch.inference_mode, "__exit__", leave)]):
        yield


def _wants_gradient(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.requires_grad


def _detach(module: fx.GraphModule, constants: frozenset[str], state: frozenset[str] = frozenset()) -> None:
    say_shared(module.graph, state)
    block = _Block(module.graph, torch.is_grad_enabled(), constants)
    for node in list(module.graph.nodes):
        inner = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(inner, fx.GraphModule):
            _detach(inner, frozenset())
        block.pass_by(node)
    block.drop_unread()
    separate_detached(module.graph)
    module.recompile()


class _Block:
    """Goes through a program's nodes in order, in and out of its no_grad blocks.

    Args:
        graph: of the program.
        enabled: whether gradients are recorded where it begins.
        constants: which of its inputs have no gradient.
    """

    def __init__(self, graph: fx.Graph, enabled: bool, constants: frozenset[str]) -> None:
        self._graph, self._enabled, self._constants = graph, enabled, constants
        self._inside: list[fx.Node] = []
        self._outside: dict[fx.Node, fx.Node] = {}  # what stands for a value of a block outside of it
        self._reached: set[int] = set()  # memory that the graph would take gradients to
        self._blocks = 0
        self._made_in: dict[int, int] = {}  # the block, or the stretch between two, where memory was first seen

    def pass_by(self, node: fx.Node) -> None:
        if node.target is private("torch._C._set_grad_enabled"):
            self._switch(node, bool(node.args[0]))
            return
        if node.op == "output":
            self._switch(node, enabled=True)
        for where in memory(node):
            self._made_in.setdefault(where, self._blocks)
        if node.op == "placeholder":
            if is_differentiable(node) and node.name not in self._constants:
                self._reached |= memory(node)
        elif self._enabled:
            node.args = fx.map_arg(node.args, self._seen_outside)
            node.kwargs = fx.map_arg(node.kwargs, self._seen_outside)
            self._reach(node)
        elif is_differentiable(node):
            self._compute_inside(node)

    def drop_unread(self) -> None:
        """Take back what nobody reads."""
        for stand_in in dict.fromkeys(reversed(self._outside.values())):
            if not stand_in.users:
                self._graph.erase_node(stand_in)

    def _switch(self, node: fx.Node, enabled: bool) -> None:
        if enabled != self._enabled:
            self._blocks += 1
        if enabled and not self._enabled:
            for value in self._inside:
                with self._graph.inserting_before(node):
                    self._outside[value] = self._graph.call_function(_DETACH, (value,))
                self._outside[value].meta = dict(value.meta)
            self._inside.clear()
        self._enabled = enabled

    def _seen_outside(self, value: fx.Node) -> fx.Node:
        return self._outside.get(value, value)

    def _reach(self, node: fx.Node) -> None:
        if is_differentiable(node) and node.target is not _DETACH and self._is_reached(node.all_input_nodes):
            self._reached.update(memory(node), *map(memory, written_to(node)))

    def _is_reached(self, nodes: Iterable[fx.Node]) -> bool:
        return any(not self._reached.isdisjoint(memory(node)) for node in nodes)

    def _compute_inside(self, node: fx.Node) -> None:
        if all(map(self._is_made_here, written_to(node))):
            self._reach(node)
            self._inside.append(node)
        elif self._is_reached(node.all_input_nodes):
            self._write_past_gradients(node)

    def _is_made_here(self, node: fx.Node) -> bool:
        return all(self._made_in[where] == self._blocks for where in memory(node))

    def _write_past_gradients(self, node: fx.Node) -> None:
        """Have a write to what was made before the block go through a detached name: gradients pass it by."""
        targets = written_to(node)
        if len(targets) > 1:
            raise CaptureError(
                "forward writes to several tensors at once under torch.no_grad, some of them made before the block",
                source=source_line(node),
                reason="eager's gradients pass such a write by, and those of a graph would end there",
                way_out="write to each of them in turn",
            )
        (target,) = targets
        with self._graph.inserting_before(node):
            detached = self._graph.call_function(_DETACH, (target,))
        detached.meta = {**node.meta, **target.meta}  # an input is in no module
        for name, at in written_arguments(node):
            if at is None:
                node.update_kwarg(name, detached)
            else:
                node.update_arg(at, detached)
        node.replace_all_uses_with(target)
