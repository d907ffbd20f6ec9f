"""Which of equal elements come first: by the standard those with the lower index, by torch.topk whichever it finds."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["TIES", "order_ties_as_torch", "orders_ties_as_torch"]

TIES, _TORCH = "ontrain.ties", "torch"
"""The key of a node's metadata, and its value."""


def order_ties_as_torch(values: ir.Value) -> None:
    """Let a provider that has torch's kernels choose among equal elements as torch.topk does, as eager would.

    Args:
        values: the first output of a TopK.
    """
    node = values.producer()
    if node is not None:  # a constant has none
        node.metadata_props[TIES] = _TORCH


def orders_ties_as_torch(node: ir.Node) -> bool:
    """Whether a TopK stands for torch.topk."""
    return node.metadata_props.get(TIES) == _TORCH
