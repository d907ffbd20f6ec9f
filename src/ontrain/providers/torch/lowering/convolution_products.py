"""Small convolutions as one product: oneDNN's call alone takes twice as long."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import onnx_ir as ir
import torch

from ontrain.graph import static_dims
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter

__all__ = ["Applied", "convolve_by_product", "image_rows", "is_line"]

Applied = tuple[str, list[float | None], str]
"""What oneDNN applies to a result, with its numbers and its algorithm."""
_SMALL = 2_500_000
"""Floating-point operations of windows up to which a call weighs more than what it computes."""
_SMALL_POINTS = 6_000_000
"""The same of filters of one pixel, for which nothing is gathered."""
_FEW_POINTS = 2048
"""Pixels up to which a product with few columns takes less time than oneDNN's call."""
_FEW = 256
"""Windows up to which BLAS copies those that overlap in little time."""
_functional = torch.nn.functional
_IN_PLACE: dict[str, Callable[..., object]] = {
    "relu": torch.relu_, "sigmoid": torch.sigmoid_, "tanh": torch.tanh_, "hardtanh": torch.clamp_,
    "leaky_relu": _functional.leaky_relu_, "swish": partial(_functional.silu, inplace=True),
    "hardswish": partial(_functional.hardswish, inplace=True),
    "hardsigmoid": partial(_functional.hardsigmoid, inplace=True),
}  # fmt: skip
"""By oneDNN's names, functions of the result and the numbers."""


class _Rows(NamedTuple):
    """A convolution as a product of rows [windows, width · channels] by a factor [width · channels, M].

    Attributes:
        x: the rows.
        factor: the filters.
        of: gives a value of the results' shape as rows.
        back: gives rows as a view in the results' shape.
    """

    x: Buf
    factor: torch.Tensor
    of: Callable[[Emitter, Buf], Buf]
    back: Callable[[torch.Tensor], torch.Tensor]


def convolve_by_product(
    e: Emitter, node: ir.Node, applied: Applied, strides: Sequence[int], dilations: Sequence[int],
    pads: Sequence[tuple[int, int]],
) -> bool:  # fmt: skip
    """Emit a convolution, what is added to it and an activation, if it is a small one whose filters never change.

    Pixels lie one after another, each with its channels: a row of a matrix that nobody has to make, and so is a window
    over one axis.

    Args:
        e: where it is emitted.
        node: Conv or FusedConv, without groups.
        applied: the activation.
        strides, dilations, pads: of each axis.
    """
    x, w, bias, z = (e.value(v) if v is not None else None for v in (*node.inputs, None, None)[:4])
    assert x is not None and w is not None
    filters = e.unchanging(w) if e.reformulates(x) else None
    if filters is None:
        return False
    plain = math.prod(w.shape[2:]) == 1 and all(s == 1 for s in strides) and not any(p for pair in pads for p in pair)
    points = math.prod(static_dims(node.outputs[0])[2:]) * x.shape[0]
    flops = 2 * math.prod(w.shape) * points
    rows: _Rows | None = None
    # What a graph makes itself often holds equal numbers, and a product would break ties between their channels.
    if len(x.shape) == 4 and plain and e.is_weight(w) and flops <= _SMALL_POINTS and points <= _FEW_POINTS:
        rows = _points(e, node, w, filters)
    elif is_line(x, w) and flops <= _SMALL:
        rows = _line(e, node, w, filters, (strides[-1], dilations[-1]), pads)
    if rows is None:
        return False
    y, factor = e.new((rows.x.shape[0], w.shape[0])), e.constant(rows.factor)
    if bias is None:
        e.call(torch.mm, rows.x, factor, out=y)
    else:
        e.call(torch.addmm, bias, rows.x, factor, out=y)
    if z is not None:
        e.run(torch.Tensor.add_, y, rows.of(e, z), writes=[y])
    name, numbers, _ = applied
    if name != "none":
        e.run(_IN_PLACE[name], y, *numbers, writes=[y])
    e.bind(node.outputs[0], e.view(y, rows.back))
    return True


def _points(e: Emitter, node: ir.Node, w: Buf, filters: torch.Tensor) -> _Rows:
    """Images whose channels lie last as rows, for filters of one pixel."""
    x = e.channels_last(node.inputs[0])
    images, _, height, width = x.shape
    shape = images, height, width, w.shape[0]
    return _Rows(
        image_rows(e, x), filters.flatten(1).t(), lambda e, z: image_rows(e, e.ordered(z, torch.channels_last)),
        lambda t: t.view(shape).permute(0, 3, 1, 2),
    )  # fmt: skip


def image_rows(e: Emitter, x: Buf) -> Buf:
    """Return images whose channels lie last as rows [pixels, channels]."""
    return e.view(x, lambda t: t.permute(0, 2, 3, 1).view(-1, x.shape[1]))


def _line(
    e: Emitter, node: ir.Node, w: Buf, filters: torch.Tensor, steps: tuple[int, int], pads: Sequence[tuple[int, int]]
) -> _Rows | None:
    """The windows of one row of pixels; None where they are too many, or pads make rows beside it."""
    x, length = e.value(node.inputs[0]), static_dims(node.outputs[0])[-1]
    if length > _FEW or any(pad for pair in pads[:-1] for pad in pair) or min(pads[-1]) < 0:
        return None
    cols = _windows(e, _by_pixel(e, x), w.shape[-1], steps, length, pads[-1])
    flat = len(x.shape) == 3
    return _Rows(
        cols, e.weights(w).windows(filters), _by_pixel, lambda t: t.t()[None] if flat else t.t()[None, :, None]
    )


def is_line(x: Buf, w: Buf) -> bool:
    """Return whether there is one image of one row, and filters are of one row."""
    rows = x.shape[2:-1] + w.shape[2:-1]
    return x.shape[0] == 1 and len(x.shape) in (3, 4) and all(n == 1 for n in rows)


def _by_pixel(e: Emitter, x: Buf) -> Buf:
    """[pixels, channels], copied where channels do not lie side by side."""
    return e.contiguous(e.view(x, lambda t: (t[0] if len(t.shape) == 3 else t[0, :, 0]).t()))


def _windows(e: Emitter, x: Buf, width: int, steps: tuple[int, int], length: int, pads: tuple[int, int]) -> Buf:
    """[windows, width · channels] of x [pixels, channels].

    It is a view: of a copy where pads are to be written. Windows with gaps are copied.

    Args:
        e, x: the emitter and the pixels.
        width: of a window, in pixels.
        steps: from one window to the next, and from one of its pixels to the next.
        length: how many windows there are.
        pads: pixels of zeros before and behind.
    """
    (pixels, channels), (stride, dilation) = x.shape, steps
    if any(pads):
        padded = e.new((pixels + sum(pads), channels))
        e.run(torch.Tensor.zero_, padded, writes=[padded])
        e.copy(x, e.narrow(padded, 0, pads[0], pixels))
        x = padded
    sizes, strides = (length, width, channels), (stride * channels, dilation * channels, 1)
    if dilation > 1:
        apart = e.contiguous(e.view(x, lambda t: t.as_strided(sizes, strides, t.storage_offset())))
        return e.reshape(apart, (length, width * channels))
    return e.view(x, lambda t: t.as_strided((length, width * channels), strides[::2], t.storage_offset()))
