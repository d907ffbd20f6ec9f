"""Products, convolutions and casts of whole numbers, of the standard and of com.microsoft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.drawn.draw import Draw
from tests.drawn.nodes.node import ROUNDED, Node, attributes, node

BYTES = [np.uint8, np.int8]


def _node(op_type: str, inputs: list, settings: dict[str, Any] | None = None, outputs: int = 1) -> Node:
    return Node(op_type, inputs, settings or {}, outputs, 19, "com.microsoft", ROUNDED)


def _whole(draw: Draw, dtype: Any, *shape: int) -> np.ndarray:
    """Any numbers of the type."""
    limits = np.iinfo(dtype)
    return np.asarray(draw.indices(limits.min, limits.max + 1, shape)).astype(dtype)


def _zero(draw: Draw, dtype: Any, *shape: int) -> np.ndarray:
    middle = 128 if dtype == np.uint8 else 0
    return np.asarray(draw.indices(middle - 5, middle + 6, shape)).astype(dtype)


def _scale(draw: Draw, *shape: int) -> np.ndarray:
    return (draw.uniform(*shape).numpy() * 0.05 + 0.01).astype(np.float32)


def _quantised(draw: Draw, dtype: Any, *shape: int) -> list[np.ndarray]:
    """Numbers, their scale and their zero."""
    return [_whole(draw, dtype, *shape), _scale(draw), _zero(draw, dtype)]


@node
def whole_matmul(draw: Draw) -> Node:
    """MatMulInteger, QLinearMatMul and MatMulIntegerToFloat, by columns."""
    batch, (rows, inner, columns) = draw.sizes(draw.integer(0, 2), 1, 3), draw.sizes(3, 1, 5)
    first, second = draw.choice(BYTES), draw.choice(BYTES)
    a, b = _whole(draw, first, *batch, rows, inner), _whole(draw, second, inner, columns)
    by_column = (columns,) if draw.flag(0.3) else ()
    za, zb = _zero(draw, first), _zero(draw, second, *by_column)
    name = draw.choice(["MatMulInteger", "QLinearMatMul", "MatMulIntegerToFloat"])
    if name == "MatMulInteger":
        return Node(name, [a, b, draw.maybe(za), draw.maybe(zb)], {})
    scales = [_scale(draw), _scale(draw, *by_column)]
    if name == "QLinearMatMul":
        inputs = [a, scales[0], za, b, scales[1], zb, np.float32(0.3), _zero(draw, first)]
        return Node(name, inputs, {}, opset=19, tolerance=ROUNDED)
    return _node(name, [a, b, *scales, draw.maybe(za), draw.maybe(zb), draw.maybe(draw.array(columns))])


@node
def whole_convolution(draw: Draw) -> Node:
    """ConvInteger and QLinearConv in groups, with a stride and padding."""
    rank, groups = draw.integer(1, 2), draw.choice([1, 2])
    first, second = draw.choice(BYTES), draw.choice(BYTES)
    settings = attributes(
        group=groups, strides=list(draw.sizes(rank, 1, 2)), pads=list(draw.sizes(2 * rank, 0, 1)),
        dilations=list(draw.sizes(rank, 1, 2)),
    )  # fmt: skip
    x = _whole(draw, first, 2, 2 * groups, *draw.sizes(rank, 4, 6))
    weight = _whole(draw, second, 2 * groups, 2, *draw.sizes(rank, 1, 2))
    zero = _zero(draw, first)
    if rank == 2 and first == np.uint8 and draw.flag():
        return Node("ConvInteger", [x, weight, draw.maybe(zero), draw.maybe(_zero(draw, second))], settings)
    by_row = (2 * groups,) if draw.flag() else ()
    zeros = np.zeros(by_row, second) if by_row else _zero(draw, second)
    bias = draw.maybe(draw.indices(-500, 500, (2 * groups,)).astype(np.int32))
    inputs = [x, _scale(draw), zero, weight, _scale(draw, *by_row), zeros, np.float32(0.4), _zero(draw, first), bias]
    return Node("QLinearConv", inputs, settings, opset=19, tolerance=ROUNDED)


@node
def whole_elements(draw: Draw) -> Node:
    """Sums, products, activations and means of whole numbers.

    No QLinearWhere: with some of its scales constant, stock ends the process.
    """
    dtype, shape = draw.choice(BYTES), draw.sizes(draw.integer(2, 3), 2, 5)
    result = [_scale(draw), _zero(draw, dtype)]
    x = _quantised(draw, dtype, *shape)
    other = draw.choice([shape, shape[-1:], (1, *shape[1:]), ()])
    images = _quantised(draw, dtype, 2, 3, *draw.sizes(2, 3, 5))
    return draw.choice([
        lambda: _node("QLinearAdd", [*x, *_quantised(draw, dtype, *other), *result]),
        lambda: _node("QLinearMul", [*x, *_quantised(draw, dtype, *other), *result]),
        lambda: _node("QLinearLeakyRelu", [*x, *result], dict(alpha=0.2)),
        lambda: _node("QLinearSigmoid", [*x, *result]),
        lambda: _node("QLinearSoftmax", [*x, np.float32(1 / 256), np.asarray(0 if dtype == np.uint8 else -128, dtype)],
                      dict(axis=draw.integer(-len(shape), len(shape) - 1), opset=13)),
        lambda: _node("QLinearConcat", [*result, *x, *_quantised(draw, dtype, *shape)], dict(axis=draw.choice([0, 1]))),
        lambda: _node("QLinearGlobalAveragePool", [*images, *result]),
        lambda: _node("QLinearAveragePool", [*images, *result],
                      dict(kernel_shape=[2, 2], strides=list(draw.sizes(2, 1, 2)), pads=list(draw.sizes(4, 0, 1)),
                           count_include_pad=draw.choice([0, 1]), ceil_mode=draw.choice([0, 1]))),
    ])()  # fmt: skip


@node.share(2)
def few_bits(draw: Draw) -> Node:
    """MatMulNBits: blocks of 2, 4 or 8 bits with scales and zeros."""
    bits, block = draw.choice([4, 4, 8]), draw.choice([16, 32])
    inner, columns = draw.choice([block, 2 * block, block + 4, 48]), draw.integer(1, 5)
    blocks = -(-inner // block)
    packed = draw.indices(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8)
    scales = _scale(draw, columns * blocks)
    zeros = draw.maybe(draw.indices(0, 256, (columns * -(-blocks * bits // 8),)).astype(np.uint8))
    settings = dict(K=inner, N=columns, bits=bits, block_size=block)
    bias = draw.maybe(draw.array(columns), 0.3)
    x = draw.array(*draw.sizes(draw.integer(1, 2), 1, 3), inner)
    return Node("MatMulNBits", [x, packed, scales, zeros, None, bias], settings, 1, 19, "com.microsoft")


@node
def gathered_blocks(draw: Draw) -> Node:
    """GatherBlockQuantized of a table of 4 bits, two in a byte."""
    block, rows = 16, draw.integer(2, 5)
    width = block * draw.integer(1, 3)
    table = draw.indices(0, 256, (rows, width // 2)).astype(np.uint8)
    zeros = draw.maybe(draw.indices(0, 256, (rows, -(-(width // block) // 2))).astype(np.uint8))
    inputs = [table, draw.indices(0, rows, draw.sizes(2, 1, 3)), _scale(draw, rows, width // block), zeros]
    settings = dict(block_size=block, gather_axis=0, quantize_axis=1, bits=4)
    return Node("GatherBlockQuantized", inputs, settings, 1, 19, "com.microsoft")


@node
def whole_attention(draw: Draw) -> Node:
    """QAttention and QGemm."""
    first, second = np.uint8, draw.choice(BYTES)
    if draw.flag():
        rows, inner, columns = draw.sizes(3, 1, 4)
        a, b = _whole(draw, first, rows, inner), _whole(draw, second, inner, columns)
        c = draw.maybe(draw.indices(-200, 200, (columns,)).astype(np.int32))
        result: Sequence[Any] = [np.float32(0.3), _zero(draw, first)] if draw.flag() else []
        scales = [_scale(draw), _zero(draw, first), b, _scale(draw), _zero(draw, second)]
        return _node("QGemm", [a, *scales, c, *result], dict(alpha=draw.choice([1.0, 0.5])))
    batch, length = draw.sizes(2, 1, 4)
    mask = draw.maybe(draw.indices(1, length + 1, (batch,)).astype(np.int32))
    inputs = [
        _whole(draw, first, batch, length, 8), _whole(draw, second, 8, 24), draw.array(24), np.float32(0.01),
        np.float32(0.02), mask, _zero(draw, first), _zero(draw, second),
    ]  # fmt: skip
    return Node("QAttention", inputs, dict(num_heads=2, unidirectional=draw.choice([0, 1])), 1, 19, "com.microsoft")


@node
def dynamic(draw: Draw) -> Node:
    """Numbers that are quantised by their own range."""
    x, dtype = draw.array(*draw.sizes(2, 1, 5)), draw.choice(BYTES)
    if draw.flag():
        return Node("DynamicQuantizeLinear", [x * draw.choice([1, 0.01, 0])], {}, 3, tolerance=ROUNDED)
    columns = draw.integer(1, 4)
    b = _whole(draw, dtype, x.shape[1], columns)
    inputs = [x, b, _scale(draw), draw.maybe(_zero(draw, dtype)), draw.maybe(draw.array(columns))]
    return Node("DynamicQuantizeMatMul", inputs, {}, 1, 19, "com.microsoft")


@node.share(2)
def back(draw: Draw) -> Node:
    """DequantizeLinear and QuantizeLinear in each width, by tensor, axis or block."""
    dtype = draw.choice([np.uint8, np.int8, np.uint16, np.int16])
    rows, columns = 4, 2 * draw.integer(1, 3)
    form = draw.choice(["tensor", "axis", "blocks"])
    axis = draw.choice([0, 1, -1])
    sizes = {"tensor": (), "axis": ((rows, columns)[axis],), "blocks": (rows // 2, columns) if axis == 0 else
             (rows, columns // 2)}[form]  # fmt: skip
    settings = attributes(axis=axis, block_size=2 if form == "blocks" else None)
    scale, zero = _scale(draw, *sizes), draw.maybe(_zero(draw, dtype, *sizes))
    if draw.flag():
        return Node("DequantizeLinear", [_whole(draw, dtype, rows, columns), scale, zero], settings, opset=21)
    zero = _zero(draw, dtype, *sizes)
    return Node("QuantizeLinear", [draw.array(rows, columns) * 3, scale, zero], settings, opset=21, tolerance=ROUNDED)
