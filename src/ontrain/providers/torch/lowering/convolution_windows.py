"""Small convolutions over one axis, as one product of their windows: oneDNN's call alone takes twice as long."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import onnx_ir as ir
import torch

from ontrain.graph import static_dims
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter

__all__ = ["Applied", "convolve_windows"]

Applied = tuple[str, list[float | None], str]
"""What oneDNN applies to a result, with its numbers and its algorithm."""
_SMALL = 2_000_000
"""Floating-point operations up to which a call weighs more than what it computes."""
_FEW = 256
"""Windows up to which BLAS copies those that overlap in little time."""
_functional = torch.nn.functional
_IN_PLACE: dict[str, Callable[..., object]] = {
    "relu": torch.relu_, "sigmoid": torch.sigmoid_, "tanh": torch.tanh_, "hardtanh": torch.clamp_,
    "leaky_relu": _functional.leaky_relu_, "swish": partial(_functional.silu, inplace=True),
    "hardswish": partial(_functional.hardswish, inplace=True),
}  # fmt: skip
"""By oneDNN's names, functions of the result and the numbers."""


def convolve_windows(
    e: Emitter, node: ir.Node, applied: Applied, strides: Sequence[int], pads: Sequence[tuple[int, int]]
) -> bool:
    """Emit a convolution, what is added to it and an activation, if it is a small one whose filters never change.

    Pixels lie one after another, each with its channels, so a window is a row of a matrix that nobody has to make.

    Args:
        e: where it is emitted.
        node: Conv or FusedConv, without groups or dilations.
        applied: the activation.
        strides, pads: of each axis.
    """
    x, w, bias, z = (e.value(v) if v is not None else None for v in (*node.inputs, None, None)[:4])
    assert x is not None and w is not None
    columns, length = w.shape[0], static_dims(node.outputs[0])[-1]
    grows = any(pad for pair in pads[:-1] for pad in pair) or min(pads[-1]) < 0
    small = length <= _FEW and 2 * math.prod(w.shape) * length <= _SMALL
    suits = _is_line(x, w) and small and not grows and e.device.type == "cpu"
    filters = e.unchanging(w) if suits and e.settings.tuning is not None else None
    if filters is None:
        return False
    cols = _windows(e, _by_pixel(e, x), w.shape[-1], strides[-1], length, pads[-1])
    y = e.new((length, columns))
    factor = e.constant(e.weights(w).windows(filters))
    if bias is None:
        e.call(torch.mm, cols, factor, out=y)
    else:
        e.call(torch.addmm, bias, cols, factor, out=y)
    if z is not None:
        e.run(torch.Tensor.add_, y, _by_pixel(e, z), writes=[y])
    name, numbers, _ = applied
    if name != "none":
        e.run(_IN_PLACE[name], y, *numbers, writes=[y])
    e.bind(node.outputs[0], e.view(y, lambda t: t.t()[None] if len(x.shape) == 3 else t.t()[None, :, None]))
    return True


def _is_line(x: Buf, w: Buf) -> bool:
    """Whether there is one image of one row, and filters are of one row; float32."""
    rows = x.shape[2:-1] + w.shape[2:-1]
    return x.shape[0] == 1 and len(x.shape) in (3, 4) and all(n == 1 for n in rows) and x.dtype == torch.float32


def _by_pixel(e: Emitter, x: Buf) -> Buf:
    """[pixels, channels], copied where channels do not lie side by side."""
    return e.contiguous(e.view(x, lambda t: (t[0] if len(t.shape) == 3 else t[0, :, 0]).t()))


def _windows(e: Emitter, x: Buf, width: int, stride: int, length: int, pads: tuple[int, int]) -> Buf:
    """[windows, width · channels] of x [pixels, channels]: a view, of a copy where pads are to be written."""
    pixels, channels = x.shape
    if any(pads):
        padded = e.new((pixels + sum(pads), channels))
        e.run(torch.Tensor.zero_, padded, writes=[padded])
        e.copy(x, e.narrow(padded, 0, pads[0], pixels))
        x = padded
    return e.view(x, lambda t: t.as_strided((length, width * channels), (stride * channels, 1), t.storage_offset()))
