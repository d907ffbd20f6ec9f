"""Products and convolutions of whole numbers of eight bits, in floating point that holds each sum exactly.

On processors with units for such products onnxruntime's kernel multiplies by a weight, as long as one thread is enough.
Weights that never change tell how large a sum may be. Below 2²⁴ every partial sum is a number of float32, in whatever
order a kernel adds, and most layers stay below; others are computed in double precision. ATen multiplies whole numbers
themselves without vectors.
"""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from ontrain.graph import static_dims
from ontrain.operators import MICROSOFT
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.convolution import geometry, is_soon_over, padded, with_pads
from ontrain.providers.torch.lowering.registry import attributes, lowers
from ontrain.providers.torch.lowering.stock_calls import emit_stock
from ontrain.providers.torch.processor import multiplies_bytes
from ontrain.providers.torch.weights import CONVOLUTION, LINEAR

__all__: list[str] = []

_LEVELS = 255
"""How far a number of eight bits may be from its zero point."""
_EXACT = 2**24
"""Up to which float32 holds every whole number."""
_INT32 = 2**31
_SINGLE = (), (1,)
"""Shapes of one number."""
_BYTES = (ir.DataType.UINT8, ir.DataType.INT8)
_KERNELS = [[a, b, a] for a in _BYTES for b in _BYTES if (a, b) != (ir.DataType.INT8, ir.DataType.UINT8)]
"""Types of factors and results of which onnxruntime has a kernel."""
_SMALL = 1 << 29
"""Operations of a product up to which one thread with units for it is faster than several without."""


def _fits(node: ir.Node) -> bool:
    """Whether no sum overflows 32 bits. A node without inputs stands for the operator as such."""
    if not node.inputs:
        return True
    w = node.inputs[1]
    if w is None or w.shape is None or not w.shape.is_static():
        return False
    inner = math.prod(static_dims(w)[1:]) if node.op_type == "ConvInteger" else static_dims(w)[-2:][0]
    return bool(inner * _LEVELS**2 < _INT32)


def _from_zero(e: Emitter, x: Buf, zero: Buf | None, dtype: torch.dtype, axis: int) -> Buf:
    """x − zero, of one zero point or one for each place of an axis."""
    numbers = e.cast(x, dtype)
    if zero is None:
        return numbers
    single = math.prod(zero.shape) == 1
    shape = [1] * len(x.shape) if single else [-1 if i == axis % len(x.shape) else 1 for i in range(len(x.shape))]
    if len(zero.shape) > 1 and not single:
        shape = list(zero.shape)
    return e.call(torch.sub, numbers, e.view(e.cast(zero, dtype), lambda t: t.view(shape)), out=numbers)


def _constant(e: Emitter, w: Buf, zero: Buf | None, axis: int) -> torch.Tensor | None:
    """A weight's distances from its zero point, in what holds each sum exactly; None if they change.

    Args:
        e: where they are read.
        w: the weight.
        zero: its zero point, or points along the axis.
        axis: counts the results that have sums of their own.
    """
    weight, point = e.unchanging(w), None if zero is None else e.unchanging(zero)
    if e.device.type != "cpu" or weight is None or (zero is not None and point is None):
        return None

    def distances() -> torch.Tensor:
        numbers = weight.double()
        if point is not None:
            places = [-1 if i == axis and point.numel() > 1 else 1 for i in range(numbers.dim())]
            numbers = numbers - point.double().view(places)
        sums = numbers.abs().sum([i for i in range(numbers.dim()) if i != axis])
        return numbers.float() if _LEVELS * float(sums.max()) < _EXACT else numbers

    return e.weights(w).derived("whole", [weight, *([] if point is None else [point])], distances)


def _has_units(e: Emitter, a: Buf, b: Buf, a_zero: Buf | None, b_zero: Buf | None) -> bool:
    """Whether the processor has units for a product with a weight that never changes, and the product is small."""
    fixed = e.unchanging(b) is not None and (b_zero is None or e.unchanging(b_zero) is not None)
    fixed = fixed and (a_zero is None or math.prod(a_zero.shape) == 1)  # onnxruntime takes none a row
    plain = e.reformulates() and len(b.shape) == 2 and len(a.shape) > 1
    return plain and fixed and 0 < 2 * math.prod(a.shape) * b.shape[1] <= _SMALL and multiplies_bytes()


@lowers("MatMulInteger", when=_fits)
def matmul_integer(e: Emitter, node: ir.Node) -> None:
    a, b, a_zero, b_zero = (None if v is None else e.value(v) for v in (*node.inputs, None, None)[:4])
    assert a is not None and b is not None
    if _has_units(e, a, b, a_zero, b_zero):
        emit_stock(e, node.op_type, [a, b, a_zero, b_zero][: len(node.inputs)], node.outputs, {})
        return
    e.copy(_multiplied(e, a, b, a_zero, b_zero), e.out(node.outputs[0]))


def _multiplied(e: Emitter, a: Buf, b: Buf, a_zero: Buf | None, b_zero: Buf | None) -> Buf:
    """The product, as whole numbers of a float type that holds each."""
    numbers = _constant(e, b, b_zero, 1) if len(b.shape) == 2 and len(a.shape) > 1 else None
    dtype = torch.float64 if numbers is None else numbers.dtype
    left = _from_zero(e, a, a_zero, dtype, -2)
    if numbers is None:
        right = _from_zero(e, b, b_zero, dtype, -1)
        product = e.new(tuple(torch.matmul(left.meta, right.meta).shape), dtype)
        if min(len(left.shape), len(right.shape)) > 1:
            return e.call(torch.matmul, left, right, out=product)
        e.compute(torch.matmul, left, right, outs=[product], fresh=True)  # a vector's `out` it would resize
        return product
    rows = e.reshape(left, (math.prod(left.shape[:-1]), left.shape[-1]))
    product = e.new((rows.shape[0], b.shape[1]), dtype)
    weight = None if dtype != torch.float32 else e.weights(b).matrix(numbers.t())
    if weight is None:
        e.call(torch.mm, rows, e.constant(numbers), out=product)
    else:
        e.compute(LINEAR, rows, weight, None, "none", [], "", outs=[product], fresh=True)
    return e.view(product, lambda t: t.view(*a.shape[:-1], b.shape[1]))


def _becomes_float(node: ir.Node) -> bool:
    """Whether a product with a matrix is scaled in float32, by one number or one a column."""
    if not node.inputs:
        return True
    a, b, a_scale, b_scale, a_zero = (*node.inputs, None)[:5]
    left, right, row, column = (_sizes(v) for v in (a, b, a_scale, b_scale))
    if a_scale is None or left is None or right is None or (a_zero is not None and _sizes(a_zero) not in _SINGLE):
        return False
    plain = len(left) > 1 and len(right) == 2 and row in _SINGLE and column in (*_SINGLE, right[1:])
    return plain and a_scale.dtype == ir.DataType.FLOAT and _fits(node)


def _sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    return None if value is None or value.shape is None or not value.shape.is_static() else static_dims(value)


def _quantises(node: ir.Node) -> bool:
    """Whether onnxruntime's kernel makes bytes of a small product of bytes, on a processor with units for it."""
    if len(node.inputs) < 8 or not multiplies_bytes():
        return False
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = node.inputs[:8]
    left, right, result = (_sizes(value) for value in (a, b, node.outputs[0]))
    if left is None or right is None or result is None or min(len(left), len(right)) < 2:
        return False
    columns = (*_SINGLE, right[-1:]) if len(right) == 2 else _SINGLE
    single = all(_sizes(value) in _SINGLE for value in (a_scale, a_zero, scale, zero))
    kinds = [None if value is None else value.dtype for value in (a, b, zero)]
    known = kinds in _KERNELS and all(v is not None and v.dtype == ir.DataType.FLOAT for v in (a_scale, b_scale, scale))
    fits = _sizes(b_scale) in columns and _sizes(b_zero) in columns
    return known and single and fits and 0 < 2 * math.prod(result) * left[-1] <= _SMALL


@lowers("QLinearMatMul", when=_quantises, devices=("cpu",))
def qlinear_matmul(e: Emitter, node: ir.Node) -> None:
    emit_stock(e, node.op_type, [e.value(v) for v in node.inputs], node.outputs, {})


@lowers("MatMulIntegerToFloat", domain=MICROSOFT, when=_becomes_float, devices=("cpu",))
def matmul_integer_to_float(e: Emitter, node: ir.Node) -> None:
    operands = [None if v is None else e.value(v) for v in node.inputs]
    a, b, a_scale, b_scale, a_zero, b_zero, bias = [*operands, None, None, None][:7]
    assert a is not None and b is not None and a_scale is not None and b_scale is not None
    if _has_units(e, a, b, a_zero, b_zero):
        emit_stock(e, node.op_type, operands, node.outputs, {}, node.domain)
        return
    product, out = _multiplied(e, a, b, a_zero, b_zero), e.out(node.outputs[0])
    row_scale = e.view(a_scale, lambda t: t.view(()))
    scale = e.call(torch.mul, row_scale, b_scale, out=e.new(b_scale.shape, b_scale.dtype))
    e.copy(product, out)
    e.call(torch.mul, out, scale, out=out)
    if bias is not None:
        e.call(torch.add, out, bias, out=out)


def _convolves_bytes(e: Emitter, node: ir.Node, w: Buf, x_zero: Buf | None, w_zero: Buf | None) -> bool:
    """Whether the processor has units for a convolution by filters that never change, and it is small.

    onnxruntime's kernel takes one zero point for all filters.
    """
    points = [zero for zero in (x_zero, w_zero) if zero is not None]
    fixed = w_zero is None or e.unchanging(w_zero) is not None
    plain = e.reformulates() and all(math.prod(zero.shape) == 1 for zero in points)
    return plain and fixed and is_soon_over(e, node, w) and multiplies_bytes()


@lowers("ConvInteger", when=_fits)
def conv_integer(e: Emitter, node: ir.Node) -> None:
    x, w, x_zero, w_zero = (None if v is None else e.value(v) for v in (*node.inputs, None, None)[:4])
    assert x is not None and w is not None
    a = attributes(node)
    if _convolves_bytes(e, node, w, x_zero, w_zero):
        *_, pads = geometry(a, x, w.shape[2:])
        emit_stock(e, node.op_type, [x, w, x_zero, w_zero][: len(node.inputs)], node.outputs, with_pads(a, pads))
        return
    numbers = _constant(e, w, w_zero, 0)
    dtype = torch.float64 if numbers is None else numbers.dtype
    images = _from_zero(e, x, x_zero, dtype, 1)
    strides, dilations, pads = geometry(a, images, w.shape[2:])
    images, even = padded(e, images, pads)
    windows = even, strides, dilations, a.get("group", 1)
    out = e.out(node.outputs[0])
    convolved = e.new(out.shape, dtype)
    single = numbers is not None and dtype == torch.float32 and len(x.shape) == 4
    filters = e.weights(w).filters(numbers, windows, images.shape) if numbers is not None and single else None
    if filters is not None:
        e.compute(CONVOLUTION, images, filters, None, *windows, "none", [], "", outs=[convolved], fresh=True)
    else:
        weight = e.constant(numbers) if numbers is not None else _from_zero(e, w, w_zero, dtype, 0)
        rest = (strides, even, dilations, False, [0] * len(even), windows[3])
        e.compute(torch.convolution, images, weight, None, *rest, outs=[convolved], fresh=True)
    e.copy(convolved, out)
