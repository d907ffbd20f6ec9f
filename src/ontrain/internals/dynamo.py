"""What TorchDynamo notes about the inputs of a graph that it has traced."""

from __future__ import annotations

import torch
from torch import fx

from ontrain.internals.access import private, version_of

__all__ = ["NOTES", "is_checkpoint", "is_data", "is_number", "is_resident", "is_written"]

NOTES = "torch._dynamo.variables.builder.GraphArg"
_RESIDENT = "_dynamo_static_input_type"


def is_resident(node: fx.Node) -> bool:
    """Whether an input is a parameter or buffer of a module in the program."""
    private(NOTES)
    return _RESIDENT in (node.meta.get("tensor_dict") or {})


def is_data(node: fx.Node) -> bool:
    """Whether a node reads the attribute `data` of a tensor, its first argument."""
    return node.op == "call_function" and getattr(node.target, "__name__", None) == "_get_data_attr"


def is_number(node: fx.Node) -> bool:
    """Whether an input is a Python float, which comes as a tensor that the graph reads."""
    source = node.meta.get("grapharg")
    is_tensor = isinstance(node.meta.get("example_value"), torch.Tensor)
    return isinstance(source, private(NOTES)) and is_tensor and not source.is_tensor


def is_written(node: fx.Node) -> bool:
    """Whether the graph writes to an input, or to a tensor that shares its memory: its trace began at version 0."""
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and version_of(value) > 0


def is_checkpoint(node: fx.Node) -> bool:
    """Whether a node calls a part of the graph, its first argument, as `torch.utils.checkpoint.checkpoint` does."""
    return node.op == "call_function" and node.target is torch.ops.higher_order.tag_activation_checkpoint
