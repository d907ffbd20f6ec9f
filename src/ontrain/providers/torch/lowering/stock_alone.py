"""Operators whose kernel in onnxruntime takes a fraction of the time, each a call of it where a graph serves.

Their lowerings, and the bodies of those without one, are many calls of ATen each, or sort where a heap is enough.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import torch

from ontrain.errors import InputError, ProviderError
from ontrain.operators import record_of
from ontrain.providers.torch.buffers import order_of
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes
from ontrain.providers.torch.lowering.stock_calls import emit_stock
from ontrain.stock_node import open_node

__all__ = ["emit_alone", "has_channels_last", "runs_alone"]

_DTYPES = (ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.INT32)


def runs_alone(node: ir.Node) -> bool:
    """Return whether a node is to be a call of onnxruntime's kernel in a graph that serves on a CPU."""
    if not record_of(node).runs_alone(node):
        return False
    values = [value for value in (*node.inputs, *node.outputs) if value is not None and value.const_value is None]
    if not all(map(_fits, values)) or all(value.dtype != ir.DataType.FLOAT for value in values):
        return False
    kinds = tuple(None if value is None else value.dtype for value in node.inputs)
    return _opens(node.op_type, node.domain, kinds, len(node.outputs), tuple(sorted(attributes(node).items())))


def _fits(value: ir.Value) -> bool:
    return value.dtype in _DTYPES and value.shape is not None and value.shape.is_static() and 0 not in value.shape


@functools.lru_cache(256)
def _opens(
    op_type: str, domain: str, kinds: tuple[ir.DataType | None, ...], outputs: int, stated: tuple[tuple[str, Any], ...]
) -> bool:
    """Whether the installed onnxruntime has the kernel: some operators are younger than the oldest one allowed."""
    try:
        open_node(op_type, kinds, outputs, dict(stated), domain)
    except ProviderError:
        return False
    return True


def has_channels_last(e: Emitter, node: ir.Node) -> bool:
    """Return whether a node's images lie with their channels last, which onnxruntime's kernels don't read."""
    value = node.inputs[0] if node.inputs else None
    return value is not None and e.computed(value) and order_of(e.value(value).meta) is torch.channels_last


def emit_alone(e: Emitter, node: ir.Node) -> None:
    """Emit a node that `runs_alone`.

    Raises:
        ProviderError: onnxruntime refuses the node.
    """
    operands = [None if value is None else e.value(value) for value in node.inputs]
    by_regions = node.op_type in ("RoiAlign", "MaxRoiPool")  # whose kernels may read past the images
    check = functools.partial(_check_regions, node.op_type) if by_regions else None
    emit_stock(e, node.op_type, operands, node.outputs, attributes(node), prepares=not by_regions, check=check)


def _check_regions(kind: str, fed: Mapping[str, torch.Tensor]) -> None:
    """Refuse regions without places and regions of no image; MaxRoiPool has the image in front of the places."""
    count, regions, images = fed["i0"].shape[0], fed["i1"], fed.get("i2")
    if not bool(torch.isfinite(regions).all()):
        raise InputError(f"{kind} has a region whose corners are no finite numbers")
    low, high = (int(end) for end in torch.aminmax(regions[:, 0] if images is None else images))
    if low < 0 or high >= count:
        raise InputError(
            f"{kind} has a region of image {low if low < 0 else high}", reason=f"the images are 0 to {count - 1}"
        )
