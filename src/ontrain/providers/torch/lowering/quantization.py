"""Reals as whole numbers of eight bits, by onnxruntime's kernels: one call each, where ATen takes six, or 22.

The kernels run on the calling thread. They are faster than ATen's calls on one thread for any size; large tensors are
left to ATen's threads.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ontrain.operators import attribute_of
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import lowers
from ontrain.providers.torch.lowering.stock_calls import emit_stock

__all__: list[str] = []

_SMALL = 1 << 17
"""Numbers that one thread quantises in some twenty microseconds."""
_BYTES = (ir.DataType.UINT8, ir.DataType.INT8)
_SETTINGS = ("block_size", "output_dtype", "precision")
"""Attributes of later opsets than that of the kernel."""


def _is_small(node: ir.Node) -> bool:
    """Whether an operand is float32, and of few numbers."""
    x = node.inputs[0] if node.inputs else None
    if x is None or x.dtype != ir.DataType.FLOAT or x.shape is None or not x.shape.is_static():
        return False
    return 0 < math.prod(x.shape.numpy()) <= _SMALL


def _to_bytes(node: ir.Node) -> bool:
    """Whether few numbers become bytes by one scale each, or each place of an axis."""
    if not _is_small(node) or any(node.attributes.get_int(name, 0) for name in _SETTINGS):
        return False
    scale, zero = (*node.inputs, None)[1:3]
    return scale is not None and scale.dtype == ir.DataType.FLOAT and (zero is None or zero.dtype in _BYTES)


@lowers("QuantizeLinear", when=_to_bytes, devices=("cpu",))
def quantize_linear(e: Emitter, node: ir.Node) -> None:
    operands = [None if value is None else e.value(value) for value in node.inputs]
    emit_stock(e, node.op_type, operands, node.outputs, {"axis": attribute_of(node, "axis")}, prepares=False)


@lowers("DynamicQuantizeLinear", when=_is_small, devices=("cpu",))
def dynamic_quantize_linear(e: Emitter, node: ir.Node) -> None:
    emit_stock(e, node.op_type, [e.value(node.inputs[0])], node.outputs, {}, prepares=False)
