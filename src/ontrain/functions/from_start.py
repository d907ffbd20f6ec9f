"""Indices of which none counts from the end, as torch's gathers and scatters have them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import DOMAIN, Builder
from ontrain.operators import Value

__all__ = ["refusing", "without_negatives"]


@composite("FromStart", like=[0])
def from_start(op: Builder, indices: Value) -> Value:
    """The indices themselves, of which none counts from the end: a negative one is the user's mistake.

    In ONNX's Gather, GatherElements and ScatterElements a negative index counts from the end; torch's index_select,
    gather and scatter refuse it. Providers refuse it, too: the torch provider by ATen's kernels, the others by
    `refusing`. A file that is written has ONNX's reading.
    """
    return op.Identity(indices)


def refusing(op: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[ir.Value | None] | None:
    """Write a FromStart or an Embedding such that kernels which count from the end refuse a negative index; else None.

    Fits `rebuild` and `inline_all`.
    """
    if node.domain != DOMAIN or node.op_type not in ("Embedding", "FromStart"):
        return None
    indices = inputs[-1]
    assert indices is not None
    refused = without_negatives(op, indices)
    return [refused if node.op_type == "FromStart" else op.Gather(inputs[0], refused, axis=0)]


def without_negatives(op: Builder, indices: ir.Value, ignored: int | None = None) -> ir.Value:
    """Return indices that hold, in the place of a negative number other than `ignored`, one that no dimension has."""
    assert indices.dtype is not None
    least = np.array(np.iinfo(indices.dtype.numpy()).min, indices.dtype.numpy())
    wrong = op.Less(indices, np.zeros((), least.dtype))
    if ignored is not None:
        wrong = op.And(wrong, op.Not(op.Equal(indices, np.array(ignored, least.dtype))))
    result: ir.Value = op.Where(wrong, least, indices)
    return result
