"""What TorchDynamo writes in its graphs in forms of its own, in the forms that a module's forward has."""

from __future__ import annotations

import torch
from torch import fx

from ontrain.internals import is_checkpoint, is_data, is_resident, is_written

__all__ = ["rewrite"]


def rewrite(graph_module: fx.GraphModule) -> None:
    """Write checkpoints as plain calls, and `tensor.data` as `tensor.detach()`.

    Which activations are computed again is said by a memory budget. A write through `.data` reaches a buffer; to
    another tensor it stays as it is, and is refused.
    """
    for node in list(graph_module.graph.nodes):
        if is_checkpoint(node):
            _call(graph_module.graph, node)
        elif is_data(node) and (not is_written(node) or _is_buffer(node.args[0])):
            node.op, node.target = "call_method", "detach"


def _call(graph: fx.Graph, node: fx.Node) -> None:
    function, *arguments = node.args
    assert isinstance(function, fx.Node)
    node.op, node.target, node.args, node.kwargs = "call_module", function.target, tuple(arguments), {}
    if not function.users:
        graph.erase_node(function)


def _is_buffer(argument: object) -> bool:
    if not isinstance(argument, fx.Node) or argument.op != "placeholder" or not is_resident(argument):
        return False
    value = argument.meta.get("example_value")
    return isinstance(value, torch.Tensor) and not value.requires_grad
