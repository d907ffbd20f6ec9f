"""Reals as whole numbers of 8 or 16 bits and back, by onnxruntime's kernels: one call each, where ATen takes up to 22.

Where such numbers are made only to become reals again, as in files with nodes for quantisation around each operator,
both ways are one call.

The kernels run on the calling thread. They are faster than ATen's calls on one thread for any size; large tensors are
left to ATen's threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from ontrain.operators import MICROSOFT, attribute_of
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers
from ontrain.providers.torch.lowering.stock_calls import emit_stock, emit_stock_row

__all__: list[str] = []

_SMALL = 1 << 17
"""Numbers that one thread quantises in some twenty microseconds."""
_BYTES = (ir.DataType.UINT8, ir.DataType.INT8)
_SHORT = (ir.DataType.UINT16, ir.DataType.INT16)
"""The standard's kernels take these from opset 21 on, onnxruntime's own of the same names in any."""
_WHOLE = (*_BYTES, *_SHORT)
_SETTINGS = ("block_size", "output_dtype", "precision")
"""Attributes of later opsets than that of the kernel."""


def _is_small(node: ir.Node) -> bool:
    """Whether an operand is float32, and of few numbers."""
    x = node.inputs[0] if node.inputs else None
    return x is not None and x.dtype == ir.DataType.FLOAT and _is_few(x)


def _is_few(x: ir.Value) -> bool:
    return x.shape is not None and x.shape.is_static() and 0 < math.prod(x.shape.numpy()) <= _SMALL


def _is_plain(node: ir.Node) -> bool:
    """Whether numbers have one float32 scale, or one at each place of an axis, and nothing else is said of them."""
    if any(node.attributes.get_int(name, 0) for name in _SETTINGS):
        return False
    scale, zero = (*node.inputs, None)[1:3]
    return scale is not None and scale.dtype == ir.DataType.FLOAT and (zero is None or zero.dtype in _WHOLE)


def _to_whole(node: ir.Node) -> bool:
    """Whether few numbers become whole ones."""
    return _is_small(node) and _is_plain(node)


def _from_whole(node: ir.Node) -> bool:
    """Whether few whole numbers become reals."""
    x = node.inputs[0] if node.inputs else None
    return x is not None and x.dtype in _WHOLE and _is_few(x) and _is_plain(node)


def _only_way_back(value: ir.Value) -> ir.Node | None:
    """The one node that makes reals of whole numbers again; None where something else reads them, too."""
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return None
    ((node, index),) = uses
    producer = value.producer()
    beside = producer is not None and node.graph is producer.graph
    is_back = node.op_type == "DequantizeLinear" and not node.domain and not index and _from_whole(node)
    return node if is_back and beside else None


@lowers("QuantizeLinear", when=_to_whole, devices=("cpu",))
def quantize_linear(e: Emitter, node: ir.Node) -> None:
    if _only_way_back(node.outputs[0]) is None:
        _emit(e, node)


@lowers("DequantizeLinear", when=_from_whole, devices=("cpu",))
def dequantize_linear(e: Emitter, node: ir.Node) -> None:
    x = node.inputs[0]
    assert x is not None
    way = x.producer()
    is_way = way is not None and way.op_type == "QuantizeLinear" and not way.domain and _to_whole(way)
    if way is None or not is_way or _only_way_back(x) is not node or e.computed(x):
        _emit(e, node)
        return
    steps = [(n.op_type, {"axis": attribute_of(n, "axis")}) for n in (way, node)]
    rows = [_operands(e, way.inputs), _operands(e, node.inputs[1:])]
    emit_stock_row(e, steps, rows, node.outputs[0], _domain_for(x))


def _emit(e: Emitter, node: ir.Node) -> None:
    stated = {"axis": attribute_of(node, "axis")}
    whole = next(value for value in (node.inputs[0], *node.outputs) if value is not None and value.dtype in _WHOLE)
    operands = _operands(e, node.inputs)
    emit_stock(e, node.op_type, operands, node.outputs, stated, _domain_for(whole), prepares=False)


def _domain_for(whole: ir.Value) -> str:
    return MICROSOFT if whole.dtype in _SHORT else ""


def _operands(e: Emitter, values: Sequence[ir.Value | None]) -> list[Buf | None]:
    return [None if value is None else e.value(value) for value in values]


@lowers("DynamicQuantizeLinear", when=_is_small, devices=("cpu",))
def dynamic_quantize_linear(e: Emitter, node: ir.Node) -> None:
    emit_stock(e, node.op_type, [e.value(node.inputs[0])], node.outputs, {}, prepares=False)


def _stays_bytes(node: ir.Node) -> bool:
    """Whether few bytes become bytes, with float32 scales."""
    x = node.inputs[0] if node.inputs else None
    few = [x, *node.outputs]
    if any(value is None or value.dtype not in _BYTES or not _is_few(value) for value in few):
        return False
    return all(value is None or value.dtype in (*_BYTES, ir.DataType.FLOAT) for value in node.inputs)


@lowers("QLinearAdd", "QLinearMul", "QLinearGlobalAveragePool", domain=MICROSOFT, when=_stays_bytes, devices=("cpu",))
def quantised_arithmetic(e: Emitter, node: ir.Node) -> None:
    emit_stock(e, node.op_type, _operands(e, node.inputs), node.outputs, attributes(node), node.domain, prepares=False)


@lowers("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", domain=MICROSOFT, when=_stays_bytes, devices=("cpu",))
def quantised_function(e: Emitter, node: ir.Node) -> None:
    """By a table of the 256 results, which onnxruntime's kernel makes once of scales that never change."""
    emit_stock(e, node.op_type, _operands(e, node.inputs), node.outputs, attributes(node), node.domain)
