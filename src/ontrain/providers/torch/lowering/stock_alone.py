"""Operators whose kernel in onnxruntime takes a fraction of the time, each a call of it where a graph serves.

Their lowerings, and the bodies of those without one, are many calls of ATen each, or sort where a heap is enough.
"""

from __future__ import annotations

import functools

import onnx_ir as ir
import torch

from ontrain.errors import InputError
from ontrain.operators import Outrun, record_of
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes
from ontrain.providers.torch.lowering.stock_calls import emit_stock

__all__ = ["emit_alone", "runs_alone"]

_DTYPES = (ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.INT32)


def runs_alone(node: ir.Node) -> bool:
    """Return whether a node is to be a call of onnxruntime's kernel in a graph that serves on a CPU."""
    if record_of(node).outrun is not Outrun.ALONE or not node.attributes.get_int("sorted", 1):
        return False
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    return all(map(_fits, values)) and any(value.dtype == ir.DataType.FLOAT for value in values)


def _fits(value: ir.Value) -> bool:
    return value.dtype in _DTYPES and value.shape is not None and value.shape.is_static() and 0 not in value.shape


def emit_alone(e: Emitter, node: ir.Node) -> None:
    """Emit a node that `runs_alone`.

    Raises:
        ProviderError: onnxruntime refuses the node.
    """
    operands = [None if value is None else e.value(value) for value in node.inputs]
    if node.op_type in ("RoiAlign", "MaxRoiPool"):  # whose kernels may read past the images
        x, *regions = operands
        assert x is not None
        e.run(functools.partial(_check_regions, node.op_type, x.shape[0]), *regions)
    emit_stock(e, node.op_type, operands, node.outputs, attributes(node))


def _check_regions(kind: str, count: int, regions: torch.Tensor, images: torch.Tensor | None = None) -> None:
    """Refuse regions without places and regions of no image; MaxRoiPool has the image in front of the places."""
    if not bool(torch.isfinite(regions).all()):
        raise InputError(f"{kind} has a region whose corners are no finite numbers")
    low, high = (int(end) for end in torch.aminmax(regions[:, 0] if images is None else images))
    if low < 0 or high >= count:
        raise InputError(
            f"{kind} has a region of image {low if low < 0 else high}", reason=f"the images are 0 to {count - 1}"
        )
