"""Gradients of filters of one channel each that are wider than three pixels, three columns at a time.

oneDNN's kernel for the gradient of such filters keeps a row of at most three numbers a channel in registers. For wider
filters it takes another one, which reaches a tenth of its rate. Their height makes no difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ontrain.internals import private
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter

__all__ = ["differentiate", "has_wide_filters"]

_COLUMNS = 3
"""Columns of a filter that the kernel's registers hold."""
_WORTH_CUTTING = 2_500_000
"""Products of a gradient from which on it takes less time in parts; each part copies the images."""


def has_wide_filters(e: Emitter, x: Buf, w: Buf, dy: Sequence[int], dilations: Sequence[int], group: int) -> bool:
    """Return whether the gradient of filters takes less time a few columns at a time.

    Args:
        e: where it is emitted.
        x, w: images and filters.
        dy: the shape of the result's adjoint.
        dilations: of both axes.
        group: groups of channels.
    """
    plain = e.device.type == "cpu" and e.settings.tuning is not None and x.dtype == w.dtype == torch.float32
    if not plain or len(x.shape) != 4 or not group == x.shape[1] == w.shape[0]:
        return False
    high, wide = w.shape[2:]
    inside = 1 < high <= x.shape[2] and _COLUMNS < wide <= x.shape[3] and set(dilations) == {1}
    return inside and math.prod(dy) * high * wide >= _WORTH_CUTTING


def differentiate(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mask: Sequence[bool], strides: Sequence[int],
    pads: Sequence[int],
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """Return the adjoints of images, filters and bias, as far as `mask` asks for them.

    Args:
        dy: adjoint of the result, [N, C, height, width].
        x, w: images [N, C, …] and filters [C, 1, …].
        mask: which of the three are asked for.
        strides, pads: of both axes.
    """
    dx = dw = None
    if mask[0]:
        dx = _gradients(dy, x, w, [True, False, False], strides, pads)[0]
    if mask[1]:
        last = dy.contiguous(memory_format=torch.channels_last)
        columns = [w.narrow(3, start, min(_COLUMNS, w.shape[3] - start)) for start in range(0, w.shape[3], _COLUMNS)]
        parts, start = [], 0
        for part in columns:
            seen = _columns(x, start - pads[1], (dy.shape[3] - 1) * strides[1] + part.shape[3])
            parts.append(_gradients(last, seen, part, [False, True, False], strides, [pads[0], 0])[1])
            start += part.shape[3]
        dw = torch.cat([part for part in parts if part is not None], 3)
    return dx, dw, dy.sum((0, 2, 3)) if mask[2] else None


def _gradients(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mask: Sequence[bool], strides: Sequence[int],
    pads: Sequence[int],
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    adjoints: tuple[torch.Tensor | None, ...] = private("torch.ops.aten.convolution_backward")(
        dy, x, w, None, strides, pads, [1, 1], False, [0, 0], len(w), mask
    )
    return adjoints


def _columns(x: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """As many columns of images, with zeros where there are none, channels last."""
    columns = torch.empty((*x.shape[:3], count), memory_format=torch.channels_last)
    begin, end = max(0, -first), min(count, x.shape[3] - first)
    columns[..., :begin].zero_()
    columns[..., end:].zero_()
    columns[..., begin:end].copy_(x[..., first + begin : first + end])
    return columns
