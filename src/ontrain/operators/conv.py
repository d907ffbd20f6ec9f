"""Convolutions, by the composites ConvGrad and ConvTransposeGrad."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ontrain.operators.agreement import shape_of, size_of
from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.record import AUTO_PAD, DOMAIN, Evaluator, Outrun, Precision, Stock, define
from ontrain.operators.shapes import static_dims

__all__ = ["pads_by_size", "resolved_pads"]


def _convolution(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """Channels of the image against those of the filters: [M, C / group, …], or [C, M / group, …] transposed."""
    x, w = shapes[:2]
    if len(x) > 1 and len(w) > 1:
        transposed = node.op_type == "ConvTranspose"
        yield x[1], w[0] if transposed else w[1] * node.attributes.get_int("group", 1)


def _other_windows(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> str:
    """Whether the windows that the node states are those of its filters, the second operand."""
    stated, filters = node.attributes.get("kernel_shape"), shapes[1]
    if stated is None or not stated.value or tuple(stated.value) == filters[2:]:
        return ""
    return f"its kernel_shape is {list(stated.value)}, and its filters have the shape {list(filters)}"


def _conv_flops(node: ir.Node) -> int:
    return 2 * size_of(node.outputs[0]) * math.prod(shape_of(node, 1)[1:])


def _conv_transpose_flops(node: ir.Node) -> int:
    return 2 * math.prod(shape_of(node, 0)) * math.prod(shape_of(node, 1)[1:])


def _wanted(node: ir.Node) -> int:
    """How many of the adjoints of image and kernel are computed; that of the bias is a sum."""
    mask = node.attributes.get("output_mask")
    return 2 if mask is None else sum(mask.as_ints()[:2])


def _conv_grad_flops(node: ir.Node) -> int:
    return 2 * math.prod(shape_of(node, 0)) * math.prod(shape_of(node, 2)[1:]) * _wanted(node)


def _conv_transpose_grad_flops(node: ir.Node) -> int:
    return 2 * math.prod(shape_of(node, 1)) * math.prod(shape_of(node, 2)[1:]) * _wanted(node)


define("CausalConvWithState")
define("DeformConv", misfit=_other_windows, outrun=Outrun.ALONE)
define("ConvGrad", domain=DOMAIN, flops=_conv_grad_flops)
define("ConvTransposeGrad", domain=DOMAIN, flops=_conv_transpose_grad_flops)


def pads_by_size(node: ir.Node) -> bool:
    """Return whether pads follow from sizes, and windows have gaps: onnxruntime resolves them as if there were none."""
    by_size = str(node.attributes.get_string("auto_pad", "NOTSET")).startswith("SAME")
    return by_size and any(gap > 1 for gap in node.attributes.get_ints("dilations", ()) or ())


def resolved_pads(
    auto_pad: str, pads: Sequence[int] | None, spans: Sequence[int], space: Sequence[int], strides: Sequence[int]
) -> list[int]:
    """The pads that `auto_pad` stands for, for windows that span `spans` elements of an input with dims `space`."""
    if auto_pad in ("NOTSET", "VALID"):
        return list(pads) if pads is not None and auto_pad == "NOTSET" else [0] * (2 * len(spans))
    totals = [max((-(-d // s) - 1) * s + span - d, 0) for d, s, span in zip(space, strides, spans, strict=True)]
    return _halves(totals, auto_pad == "SAME_UPPER")


def _halves(totals: Sequence[int], upper: bool) -> list[int]:
    less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return less + more if upper else more + less


define(
    "Conv",
    precision=Precision.HALF,
    choices=AUTO_PAD,
    misfit=_other_windows,
    agreeing=_convolution,
    flops=_conv_flops,
    convolves=True,
    stock=Stock.KERNEL,
)


@gradient("Conv")
def conv(
    op: Op, dy: Value, x: Value, w: Value, b: Value | None = None,
    *, auto_pad: str, group: int, dilations: Sequence[int] | None = None, pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None, kernel_shape: Sequence[int] | None = None,
) -> Adjoints:  # fmt: skip
    """The composite of all three; what is not wanted is not computed."""
    space, spans, strides, dilations = _windows(x, w, strides, dilations)
    return op.composite(
        "ConvGrad", dy, x, w, outputs=3, strides=strides, dilations=dilations, group=group,
        pads=resolved_pads(auto_pad, pads, spans, space, strides), output_mask=_mask(op),
    )[: len(op.inputs)]  # fmt: skip


define(
    "ConvTranspose",
    precision=Precision.HALF,
    choices=AUTO_PAD,
    misfit=_other_windows,
    agreeing=_convolution,
    flops=_conv_transpose_flops,
    convolves=True,
    stock=Stock.KERNEL,
)


@gradient("ConvTranspose")
def conv_transpose(
    op: Op, dy: Value, x: Value, w: Value, b: Value | None = None,
    *, auto_pad: str, group: int, dilations: Sequence[int] | None = None, pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None, kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None, output_shape: Sequence[int] | None = None,
) -> Adjoints:  # fmt: skip
    """The composite of all three, with the pads that an output shape stands for."""
    space, spans, strides, dilations = _windows(x, w, strides, dilations)
    if output_shape is not None or auto_pad.startswith("SAME"):
        extra = output_padding or [0] * len(space)
        sizes = static_dims(dy)[2:]
        totals = [s * (d - 1) + e + span - m
                  for s, d, e, span, m in zip(strides, space, extra, spans, sizes, strict=True)]  # fmt: skip
        pads = _halves(totals, auto_pad == "SAME_UPPER")
    return op.composite(
        "ConvTransposeGrad", dy, x, w, outputs=3, strides=strides, dilations=dilations, group=group,
        pads=list(pads) if pads is not None else [0] * (2 * len(space)), output_mask=_mask(op),
    )[: len(op.inputs)]  # fmt: skip


def _windows(
    x: ir.Value, w: ir.Value, strides: Sequence[int] | None, dilations: Sequence[int] | None
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Spatial dims of x, elements that a kernel spans, strides and dilations written out."""
    space, kernel = list(static_dims(x)[2:]), static_dims(w)[2:]
    strides, dilations = list(strides or [1] * len(space)), list(dilations or [1] * len(space))
    return space, [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)], strides, dilations


def _mask(op: Op) -> list[int]:
    return [int(i < len(op.wanted) and op.wanted[i]) for i in range(3)]


define("Col2Im", settings=(1, 2), evaluator=Evaluator.IN_PART, outrun=Outrun.ALONE)
define("Im2Col", domain=DOMAIN)


@gradient("Col2Im")
def col2im(
    op: Op, dy: Value, x: Value, image_shape: Value, block_shape: Value,
    *, dilations: Sequence[int] | None = None, pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Adjoints:  # fmt: skip
    """The composite Im2Col."""
    block = op.constant(2)
    assert block is not None
    rank = len(block)
    dx = op.composite(
        "Im2Col", dy, kernel_shape=[int(size) for size in block], dilations=list(dilations or [1] * rank),
        pads=list(pads or [0] * (2 * rank)), strides=list(strides or [1] * rank),
    )  # fmt: skip
    return dx, None, None


@gradient("Im2Col", domain=DOMAIN)
def im2col(
    op: Op, dy: Value, x: Value, *, kernel_shape: Sequence[int], dilations: Sequence[int], pads: Sequence[int],
    strides: Sequence[int],
) -> Adjoints:  # fmt: skip
    """Col2Im, its inverse but for the sum where blocks overlap."""
    dx: Value = op.Col2Im(
        dy, list(static_dims(x)[2:]), list(kernel_shape), dilations=list(dilations), pads=list(pads),
        strides=list(strides),
    )  # fmt: skip
    return dx
