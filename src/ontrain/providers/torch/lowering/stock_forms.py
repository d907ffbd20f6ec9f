"""Composites in a form that onnxruntime has a kernel for, where their bodies would take longer there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from ontrain.functions import RESIZE_WAYS
from ontrain.graph import Builder
from ontrain.operators import DOMAIN, static_dims
from ontrain.providers.torch.lowering.registry import attributes

__all__ = ["stock_form"]


def stock_form(node: ir.Node) -> Callable[[Builder, ir.Node, Sequence[ir.Value | None]], Sequence[ir.Value]] | None:
    """Return what emits a node in such a form; None where there is none. The result fits `rebuild`."""
    return _resized if (node.domain, node.op_type) == (DOMAIN, "Interpolate") else None


def _resized(op: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[ir.Value]:
    """A Resize: onnxruntime repeats pixels where they lie if factors are whole and stated, not sizes."""
    (x,), stated = inputs, attributes(node)
    assert x is not None
    before, after = static_dims(x), [*static_dims(x)[:2], *stated["size"]]
    mode, transformation = RESIZE_WAYS[stated["mode"]]
    whole = [divmod(size, length) for length, size in zip(before, after, strict=True)]
    factors = None if any(rest for _, rest in whole) else np.array([factor for factor, _ in whole], np.float32)
    return [
        op.Resize(
            x, None, factors, None if factors is not None else np.array(after, np.int64), nearest_mode="floor",
            mode=mode, coordinate_transformation_mode=transformation,
        )
    ]  # fmt: skip
