"""Convolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir
import torch

from ontrain.errors import InputError
from ontrain.graph import describe, source_of, static_dims
from ontrain.internals import private
from ontrain.operators import MICROSOFT, is_hardsigmoid, operand_of
from ontrain.providers.torch.buffers import Buf, order_of
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering import few_points, few_windows, wide_filters
from ontrain.providers.torch.lowering.convolution_products import Applied, convolve_by_product, is_line
from ontrain.providers.torch.lowering.finiteness import activations_by_aten, doubt
from ontrain.providers.torch.lowering.registry import Attributes, attributes, lowers, lowers_composite
from ontrain.providers.torch.lowering.shape import constant_ints, surrounded
from ontrain.providers.torch.lowering.stock_calls import emit_stock
from ontrain.providers.torch.weights import CONVOLUTION, Windows

__all__ = ["geometry", "padded", "with_pads"]

aten = torch.ops.aten

_BY_ONEDNN = (torch.float32, torch.bfloat16)


def _pads(a: Attributes, spatial: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
          dilations: Sequence[int]) -> list[tuple[int, int]]:  # fmt: skip
    """(before, after) per axis, with auto_pad resolved."""
    rank, mode = len(spatial), a.get("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pairs = []
        for n, k, s, d in zip(spatial, kernel, strides, dilations, strict=True):
            total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
            small, large = total // 2, total - total // 2
            pairs.append((small, large) if mode == "SAME_UPPER" else (large, small))
        return pairs
    pads = a.get("pads") or [0] * (2 * rank)
    return list(zip(pads[:rank], pads[rank:], strict=True))


def padded(e: Emitter, x: Buf, pads: list[tuple[int, int]], value: float = 0.0) -> tuple[Buf, list[int]]:
    """Return x and symmetric pads for ATen; an uneven pad is written out."""
    if all(before == after for before, after in pads):
        return x, [before for before, _ in pads]
    shape = [*x.shape[:2], *(n + b + c for n, (b, c) in zip(x.shape[2:], pads, strict=True))]
    out = e.new(shape, x.dtype, order_of(x.meta))
    e.copy(x, surrounded(e, out, [0, 0, *(before for before, _ in pads)], x.shape, value))
    return out, [0] * len(pads)


def geometry(a: Attributes, x: Buf, kernel: Sequence[int]) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Strides, dilations and pads of windows over images, with their defaults and auto_pad resolved."""
    rank = len(kernel)
    strides, dilations = a.get("strides") or [1] * rank, a.get("dilations") or [1] * rank
    return list(strides), list(dilations), _pads(a, x.shape[2:], kernel, strides, dilations)


def with_pads(a: Attributes, pads: Sequence[tuple[int, int]]) -> Attributes:
    """Return attributes with pads as numbers: onnxruntime resolves no `auto_pad` where filters have gaps."""
    return {**a, "auto_pad": "NOTSET", "pads": [*(before for before, _ in pads), *(after for _, after in pads)]}


def _images(e: Emitter, node: ir.Node, value: ir.Value | None, w: Buf, strides: Sequence[int]) -> Buf:
    """A convolution's images, in the order in which oneDNN convolves without rearranging them at each call.

    Where the weight is the larger part, its own rearrangement is what counts, and there is none for channels first.
    """
    x = e.value(value)
    if len(x.shape) != 4 or e.device.type != "cpu" or x.dtype not in _BY_ONEDNN:
        return x
    assert isinstance(node.graph, ir.Graph)
    if e.holds(_trains_more_weights_than_images, node.graph):
        return e.ordered(x, torch.contiguous_format)
    point = math.prod(w.shape[2:]) == 1
    images = x.shape[0] * math.prod(x.shape[2:]) * (x.shape[1] + w.shape[0] / math.prod(strides))
    return e.channels_last(value) if point or math.prod(w.shape) <= images else e.ordered(x, torch.contiguous_format)


def _trains_more_weights_than_images(graph: ir.Graph) -> bool:
    """Whether the convolutions that are differentiated have more elements of weights than of images, all together.

    Such a network gains a twentieth of its time by channels last at most. Channels first it has eager's numbers to the
    bit: oneDNN adds up the products of a window in blocks there, and one after the other where the channels lie last,
    with two to four times the error, which may turn the sign of what goes into a rectifier.
    """
    images = weights = 0
    for node in graph:
        if node.op_type == "ConvGrad":
            dy, x, w = (math.prod(static_dims(v)) for v in node.inputs if v is not None)
            images, weights = images + dy + x, weights + w
    return weights > images


def _is_column(e: Emitter, node: ir.Node, a: Attributes, w: Buf) -> bool:
    """Whether images are one pixel wide, and so are filters: a row of pixels is what oneDNN takes in blocks."""
    x = e.value(node.inputs[0])
    if e.device.type != "cpu" or len(x.shape) != 4 or x.shape[3] != 1 or w.shape[3] != 1 or x.shape[2] == 1:
        return False
    return geometry(a, x, w.shape[2:])[2][1] == (0, 0)


@lowers("Conv")
def conv(e: Emitter, node: ir.Node) -> None:
    _convolve(e, node, None, _NOTHING)


_NOTHING: Applied = "none", [], ""
_WITHOUT_NUMBERS = {"relu", "sigmoid", "tanh", "hardswish", "swish"}
"""What oneDNN applies, under its own names."""


def _applied(node: ir.Node) -> Applied | None:
    """What oneDNN calls the activation of a FusedConv; None for one that it does not apply to a result."""
    a = attributes(node)
    activation, numbers = a.get("activation", ""), a.get("activation_params", ())
    if not activation:
        return _NOTHING
    if activation == "LeakyRelu" and len(numbers) == 1:
        return "leaky_relu", list(numbers), ""
    if activation == "Clip" and len(numbers) == 2:
        return "hardtanh", list(numbers), ""
    if activation == "HardSigmoid":
        return ("hardsigmoid", [], "") if len(numbers) == 2 and is_hardsigmoid(*numbers) else None
    name = activation.lower()
    plain = not numbers or (name == "swish" and tuple(numbers) == (1.0,))
    return (name, [], "") if plain and name in _WITHOUT_NUMBERS else None


def _applies(node: ir.Node) -> bool:
    """Whether oneDNN convolves such numbers and applies what follows.

    A node without inputs stands for the operator as such.
    """
    if not node.inputs:
        return True
    x, applied = node.inputs[0], _applied(node)
    images = x is not None and x.dtype == ir.DataType.FLOAT and x.shape is not None and len(x.shape) in (3, 4)
    z = operand_of(node, 3)
    known = applied is not None and (z is None or (applied[0] in ("none", "relu") and z.shape == node.outputs[0].shape))
    return CONVOLUTION is not None and images and known


@lowers("FusedConv", domain=MICROSOFT, when=_applies, devices=("cpu",))
def fused_conv(e: Emitter, node: ir.Node) -> None:
    z = e.optional(node, 3)
    applied = _applied(node)
    assert applied is not None
    _convolve(e, node, z, applied)


def _check_sizes(
    node: ir.Node, x: Buf, w: Buf, dilations: Sequence[int], pads: Sequence[tuple[int, int]]
) -> None:  # fmt: skip
    """Refuse images that are smaller than the filters, which inference of shapes lets pass."""
    sizes = [n + before + after for n, (before, after) in zip(x.shape[2:], pads, strict=True)]
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    if any(size < span for size, span in zip(sizes, spans, strict=True)):
        raise InputError(
            f"images of {list(x.shape[2:])} are too small for {node.op_type}",
            node=describe(node),
            source=source_of(node),
            reason=f"with pads they are of {sizes}, and a filter covers {spans}",
            way_out="feed larger images",
        )


def _convolve(e: Emitter, node: ir.Node, z: Buf | None, applied: Applied) -> None:
    """Emit an activation of the sum of a convolution and z."""
    a, w = attributes(node), e.value(node.inputs[1])
    strides, dilations, pads = geometry(a, e.value(node.inputs[0]), w.shape[2:])
    _check_sizes(node, e.value(node.inputs[0]), w, dilations, pads)
    if a.get("group", 1) == 1 and convolve_by_product(e, node, applied, strides, dilations, pads):
        return
    if _is_short_line(e, node, applied) or _is_small(e, node, applied):
        operands = [None if value is None else e.value(value) for value in node.inputs]
        emit_stock(e, node.op_type, operands, node.outputs, with_pads(a, pads), node.domain)
        return
    column = _is_column(e, node, a, w)
    x = e.contiguous(e.value(node.inputs[0])) if column else _images(e, node, node.inputs[0], w, strides)
    bias = e.optional(node, 2)
    out = e.out(node.outputs[0], *([] if column else [x]))
    group = a.get("group", 1)
    plain = z is None and applied[0] == "none"
    if plain and not column and few_points.has_few_points(e, x, w, strides, pads, group):
        few_points.convolve(e, x, w, bias, out)
        return
    x, even = padded(e, x, pads)
    by_row, windows = _row_windows(column, len(even), (even, strides, dilations, group))
    tunes = e.reformulates()
    # What a graph makes itself, as by ConstantOfShape, often holds equal numbers: ATen keeps ties between channels.
    own = e.unchanging(w) if tunes and len(x.shape) in (3, 4) and e.is_weight(w) and not _is_narrow(w) else None
    filters = None if own is None else e.weights(w).filters(by_row(own), windows, by_row(x.meta).shape)
    if z is not None or applied[0] != "none" or filters is not None:
        x, w, out = (e.view(buf, by_row) for buf in (x, w, out))
        z = None if z is None else e.view(e.contiguous(z), by_row) if len(windows[0]) != len(even) or column else z
        doubtful = doubt(e, node) if activations_by_aten(applied[0]) else None
        _by_onednn(e, x, w if filters is None else filters, bias, z, windows, applied, out, doubtful)
        return
    if column:
        x, w, out = (e.view(buf, lambda t: t.squeeze(3)) for buf in (x, w, out))
        strides, dilations, even = strides[:1], dilations[:1], even[:1]
    _by_aten(e, node, x, w, bias, out, (strides, even, dilations), group)


def _by_aten(
    e: Emitter, node: ir.Node, x: Buf, w: Buf, bias: Buf | None, out: Buf,
    windows: tuple[Sequence[int], Sequence[int], Sequence[int]], group: int,
) -> None:  # fmt: skip
    """Emit a convolution by ATen's kernel, or by products where its filters meet few places or lie along a line."""
    strides, pads, dilations = windows
    if few_windows.has_few_windows(e, x, w, static_dims(node.outputs[0]), group, few_windows.LARGE):
        e.compute(few_windows.convolve, x, w, bias, *windows, outs=[out], fresh=True)
    elif wide_filters.is_long_line(e, x, w, dilations, group):
        e.compute(wide_filters.convolve_line, x, w, bias, strides, pads, outs=[out], fresh=True)
    else:
        # ATen's variant with out= makes a new tensor and copies it, too.
        rest = (*windows, False, [0] * len(pads), group)
        e.compute(torch.convolution, x, w, bias, *rest, outs=[out], fresh=True)


_SHORT = 3_000_000
"""Floating-point operations of a line up to which oneDNN takes longer to rearrange it than onnxruntime to convolve."""
_TINY = 1_500_000
"""Those of images that onnxruntime has convolved on one thread before oneDNN begins, or soon after."""
_BY_ONNXRUNTIME = {"none", "relu", "sigmoid", "tanh", "leaky_relu", "hardtanh"}
"""What onnxruntime's convolution applies as well, by oneDNN's names."""


def _is_short_line(e: Emitter, node: ir.Node, applied: Applied) -> bool:
    """Whether an image of one row has so few numbers that one thread is enough, and its filters never change."""
    x, w = e.value(node.inputs[0]), e.value(node.inputs[1])
    if not e.reformulates(x) or not is_line(x, w) or e.unchanging(w) is None:
        return False
    return applied[0] in _BY_ONNXRUNTIME and 2 * math.prod(w.shape) * static_dims(node.outputs[0])[-1] <= _SHORT


def _is_small(e: Emitter, node: ir.Node, applied: Applied) -> bool:
    """Whether images are so small that oneDNN takes longer to begin, 25 microseconds, than one thread to convolve them.

    Images one pixel high or wide are lines, which have rules of their own.
    """
    x, w = e.value(node.inputs[0]), e.value(node.inputs[1])
    if not e.reformulates(x, w) or len(x.shape) != 4 or 1 in x.shape[2:]:
        return False
    return applied[0] in _BY_ONNXRUNTIME and is_soon_over(e, node, w)


def is_soon_over(e: Emitter, node: ir.Node, w: Buf) -> bool:
    """Return whether a convolution by filters that never change is over before oneDNN begins with its own."""
    operations = 2 * math.prod(w.shape[1:]) * math.prod(static_dims(node.outputs[0]))
    return e.unchanging(w) is not None and 0 < operations <= _TINY


def _is_narrow(w: Buf) -> bool:
    """Whether filters are so few and so short, over one axis, that oneDNN's registers stay empty."""
    over_one_axis = len(w.shape) == 3 or w.shape[2] == 1
    return over_one_axis and w.shape[-1] > 1 and 1 < w.shape[0] < 16 and math.prod(w.shape[1:]) < 64


def _row_windows(column: bool, rank: int, windows: Windows) -> tuple[Callable[[torch.Tensor], torch.Tensor], Windows]:
    """How images of one axis, or one pixel wide, become images of one row, which oneDNN takes; their windows."""
    pads, strides, dilations, group = windows
    if column:
        return lambda t: t.squeeze(3).unsqueeze(2), (pads[::-1], strides[::-1], dilations[::-1], group)
    if rank == 1:
        return lambda t: t.unsqueeze(2), ([0, *pads], [1, *strides], [1, *dilations], group)
    return lambda t: t, windows


def _by_onednn(
    e: Emitter, x: Buf, w: Buf | torch.Tensor, bias: Buf | None, z: Buf | None, windows: Windows, applied: Applied,
    out: Buf, doubtful: Buf | None,
) -> None:  # fmt: skip
    """Emit oneDNN's convolution; filters in its own order have no memory that a plan could name."""
    if z is not None:
        z = e.ordered(z, order_of(out.meta))
    own, afterwards = w if isinstance(w, torch.Tensor) else None, activations_by_aten(applied[0])

    def run(
        x: torch.Tensor, w: torch.Tensor | None, bias: torch.Tensor | None, z: torch.Tensor | None,
        doubtful: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        w, later = own if w is None else w, afterwards if doubtful is not None and doubtful else None
        name, numbers, form = applied if later is None else _NOTHING
        result: torch.Tensor = (
            CONVOLUTION(x, w, bias, *windows, name, numbers, form)
            if z is None
            else CONVOLUTION.binary(x, z, w, bias, *windows, "add", None, None if name == "none" else name, [], None)
        )
        if later is not None:
            later(result, *applied[1])
        return result

    e.compute(run, x, None if own is not None else w, bias, z, doubtful, outs=[out], fresh=True)


_BLOCK = 16
"""Channels that oneDNN computes side by side."""


def _writes_beyond(e: Emitter, w: Buf, strides: Sequence[int]) -> bool:
    """Whether oneDNN's gradient of filters may write beyond its memory for images with their channels last.

    It does for strided filters of one pixel and fewer channels than a block, at some sizes, and ends the process.
    """
    point = math.prod(w.shape[2:]) == 1 and any(s > 1 for s in strides)
    return e.device.type == "cpu" and point and w.shape[1] % _BLOCK != 0


@lowers_composite("ConvGrad")
def conv_grad(e: Emitter, node: ir.Node) -> None:
    a, w = attributes(node), e.value(node.inputs[2])
    steps = a.get("strides") or [1]
    if _writes_beyond(e, w, steps):
        x = e.ordered(e.value(node.inputs[1]), torch.contiguous_format)
    else:
        x = _images(e, node, node.inputs[1], w, steps)
    dy = e.ordered(e.value(node.inputs[0]), order_of(x.meta))
    strides, dilations, pads = geometry(a, x, w.shape[2:])
    mask = [i < len(node.outputs) and e.reads(node.outputs[i]) for i in range(3)]
    # Images go back in the images' order; a weight's adjoint has four axes, too, and lies as the weight does.
    outs = [e.out(node.outputs[i], *([] if i else [x])) if wanted else None for i, wanted in enumerate(mask)]
    group = a.get("group", 1)
    if few_points.has_few_points(e, x, w, strides, pads, group):
        few_points.differentiate(e, dy, x, w, outs)
        return
    images, even = padded(e, x, pads)
    crop = images is not x

    by_line = wide_filters.is_long_line(e, images, w, dilations, group)
    by_columns = wide_filters.has_wide_filters(e, images, w, dy.shape, dilations, group)
    by_windows = few_windows.has_few_windows(e, images, w, dy.shape, group, few_windows.LARGE_GRADIENTS)

    def run(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if by_line:
            dx, dw, db = wide_filters.differentiate_line(dy, x, w, mask, strides, even)
        elif by_columns:
            dx, dw, db = wide_filters.differentiate(dy, x, w, mask, strides, even)
        elif by_windows:
            dx, dw, db = few_windows.differentiate(dy, x, w, mask, strides, even, dilations)
        else:
            dx, dw, db = private("torch.ops.aten.convolution_backward")(
                dy, x, w, [w.shape[0]], strides, even, dilations, False, [0] * len(even), group, mask
            )
        if crop and dx is not None:
            for i, (before, after) in enumerate(pads):
                dx = dx.narrow(2 + i, before, dx.shape[2 + i] - before - after)
        return dx, dw, db

    e.compute(run, dy, images, w, outs=outs, fresh=True)


@lowers("ConvTranspose")
def conv_transpose(e: Emitter, node: ir.Node) -> None:
    x, w = e.value(node.inputs[0]), e.value(node.inputs[1])
    bias = e.optional(node, 2)
    a = attributes(node)
    rank = len(w.shape) - 2
    strides, dilations = a.get("strides") or [1] * rank, a.get("dilations") or [1] * rank
    wanted = static_dims(node.outputs[0])[2:]
    before = list((a.get("pads") or [0] * rank)[:rank])
    full = [
        s * (n - 1) + (k - 1) * d + 1 for n, k, s, d in zip(x.shape[2:], w.shape[2:], strides, dilations, strict=True)
    ]
    extra = a.get("output_padding") or [0] * rank
    if a.get("output_shape") or a.get("auto_pad", "NOTSET") != "NOTSET":
        totals = [n + p - m for n, p, m in zip(full, extra, wanted, strict=True)]
        before = [t // 2 if a.get("auto_pad") == "SAME_UPPER" else t - t // 2 for t in totals]
    x = e.ordered(x, order_of(x.meta))
    out = e.out(node.outputs[0], x)
    group = a.get("group", 1)
    pads = [(b, n + p - m - b) for n, p, m, b in zip(full, extra, wanted, before, strict=True)]
    reach = all(p < max(s, d) for p, s, d in zip(extra, strides, dilations, strict=True))
    if reach and all(b == after >= 0 for b, after in pads):
        e.compute(
            aten.convolution, x, w, bias, strides, before, dilations, True, list(extra), group, outs=[out], fresh=True
        )  # fmt: skip
        return

    settings = (strides, dilations, group, before, list(extra), wanted)
    e.compute(_cropped, x, w, bias, *settings, outs=[out], fresh=True)


def _cropped(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, strides: Sequence[int], dilations: Sequence[int],
    group: int, before: Sequence[int], extra: Sequence[int], wanted: Sequence[int],
) -> torch.Tensor:  # fmt: skip
    """A transposed convolution without pads, cropped: ONNX allows uneven pads and an output_shape, ATen does not."""
    none = [0] * len(wanted)
    y: torch.Tensor = aten.convolution(x, w, None, strides, none, dilations, True, none, group)
    # A negative pad, for an output_shape beyond what the windows cover, adds zeros.
    y = torch.nn.functional.pad(y, [p for n, b in zip(extra[::-1], before[::-1], strict=True) for p in (-b, n)])
    for i, size in enumerate(wanted):
        missing = size - y.shape[2 + i]
        if missing > 0:
            y = torch.nn.functional.pad(y, [*[0, 0] * (len(wanted) - 1 - i), 0, missing])
        y = y.narrow(2 + i, 0, size)
    return y if bias is None else y + bias.view(1, -1, *([1] * len(wanted)))


def _output_padding(node: ir.Node) -> list[int] | None:
    """By how many elements dy reaches beyond what the windows cover, as ATen counts it; None if it does not."""
    a, (dy, x, w) = attributes(node), (static_dims(v) for v in node.inputs if v is not None)
    rank, extra = len(w) - 2, []
    for i, (m, n, k) in enumerate(zip(dy[2:], x[2:], w[2:], strict=True)):
        stride, dilation, pad = (a[name][i] for name in ("strides", "dilations", "pads"))
        extra.append(m - (stride * (n - 1) + (k - 1) * dilation + 1 - 2 * pad))
        if pad < 0 or not 0 <= extra[-1] < max(stride, dilation):
            return None
    return extra if rank else None


def _transposes(node: ir.Node) -> bool:
    """Whether ATen has such a convolution. A node without inputs stands for the operator as such."""
    return not node.inputs or _output_padding(node) is not None


@lowers_composite("ConvTransposeGrad", when=_transposes)
def conv_transpose_grad(e: Emitter, node: ir.Node) -> None:
    dy, x, w = (e.value(v) for v in node.inputs)
    a, extra = attributes(node), _output_padding(node)
    order = order_of(x.meta)
    x, dy = e.ordered(x, order), e.ordered(dy, order)
    mask = [i < len(node.outputs) and e.reads(node.outputs[i]) for i in range(3)]
    outs = [e.out(node.outputs[i], *([] if i else [x])) if wanted else None for i, wanted in enumerate(mask)]
    e.compute(
        private("torch.ops.aten.convolution_backward"), dy, x, w, [dy.shape[1]], a["strides"],
        a["pads"][: len(w.shape) - 2], a["dilations"], True, extra, a.get("group", 1), mask, outs=outs, fresh=True,
    )  # fmt: skip


def _in_planes(node: ir.Node) -> bool:
    """Whether ATen knows such blocks: of two axes, with as many pads before as behind.

    A node without numbers stands for the operator as such.
    """
    if not node.inputs or (node.op_type == "Col2Im" and (node.inputs[2] is None or node.inputs[2].const_value is None)):
        return True
    a = attributes(node)
    rank = len(a["kernel_shape"] if node.op_type == "Im2Col" else constant_ints(node.inputs[2]) or ())
    pads = a.get("pads") or [0] * (2 * rank)
    return rank == 2 and list(pads[:2]) == list(pads[2:])


def _blocks(a: Attributes) -> tuple[Sequence[int], ...]:
    return a.get("dilations") or [1, 1], (a.get("pads") or [0, 0])[:2], a.get("strides") or [1, 1]


@lowers("Col2Im", when=_in_planes)
def col2im(e: Emitter, node: ir.Node) -> None:
    size, block = (constant_ints(v) for v in node.inputs[1:])
    out = e.out(node.outputs[0])
    x = e.contiguous(e.value(node.inputs[0]))
    e.run(aten.col2im.out, x, size, block, *_blocks(attributes(node)), out=out, writes=[out])


@lowers_composite("Im2Col", when=_in_planes)
def im2col(e: Emitter, node: ir.Node) -> None:
    a, out = attributes(node), e.out(node.outputs[0])
    x = e.contiguous(e.value(node.inputs[0]))
    e.run(aten.im2col.out, x, a["kernel_shape"], *_blocks(a), out=out, writes=[out])
