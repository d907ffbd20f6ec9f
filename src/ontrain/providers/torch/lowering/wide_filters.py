"""Gradients of filters of one channel each that are wider than three pixels.

oneDNN's kernel for the gradient of such filters keeps a row of at most three numbers a channel in registers. For wider
filters it takes another one, which reaches a tenth of its rate. Their height makes no difference. So filters get their
gradient three columns at a time. Where images have a few pixels only, each pixel of the images is multiplied with each
of the result, and a filter's number gets the sum of the products that belong to it.

Over one axis, as in Mamba and Conformer, oneDNN is slow forwards, too, unless the channels of each place lie side by
side. The gradient of filters of many numbers is a product there: each piece of the result is multiplied with the piece
of the line that it was made of, and a filter's number gets the sum along one diagonal.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch.nn import functional

from ontrain.internals import private
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter

__all__ = ["convolve_line", "differentiate", "differentiate_line", "has_wide_filters", "is_long_line"]

_COLUMNS = 3
"""Columns of a filter that the kernel's registers hold."""
_WORTH_CUTTING = 2_500_000
"""Products of a gradient from which on it takes less time in parts; each part copies the images."""
_FEW_PAIRS = 400
"""Pairs of a pixel of the images and one of the result, up to which the product of all pairs takes the least time."""
_WORTH_PAIRING = 1_000_000
"""Products of a gradient from which on that is so."""
_LONG = 100_000
"""Elements of a batch of lines from which on a copy to another order is worth its time."""
_PIECE = 32
"""Places of the result that one product takes of a line."""
_MANY = 8
"""Numbers of a filter over lines from which on products take less time than oneDNN."""


def has_wide_filters(e: Emitter, x: Buf, w: Buf, dy: Sequence[int], dilations: Sequence[int], group: int) -> bool:
    """Return whether the gradient of filters takes less time a few columns at a time.

    Args:
        e: where it is emitted.
        x, w: images and filters.
        dy: the shape of the result's adjoint.
        dilations: of both axes.
        group: groups of channels.
    """
    if not e.reformulates(x, w) or len(x.shape) != 4 or not group == x.shape[1] == w.shape[0]:
        return False
    high, wide = w.shape[2:]
    if high == 1 or wide <= _COLUMNS or set(dilations) != {1}:
        return False
    products = math.prod(dy) * high * wide
    if _pairs(x.shape, dy) <= _FEW_PAIRS:
        return products >= _WORTH_PAIRING
    return high <= x.shape[2] and wide <= x.shape[3] and products >= _WORTH_CUTTING


def is_long_line(e: Emitter, x: Buf, w: Buf, dilations: Sequence[int], group: int) -> bool:
    """Return whether a convolution over one axis takes less time with the channels of each place side by side."""
    if not e.reformulates(x, w) or len(x.shape) != 3 or not group == x.shape[1] == w.shape[0]:
        return False
    wide = w.shape[2] > _COLUMNS and set(dilations) == {1} and e.unchanging(w) is None
    return wide and math.prod(x.shape) >= _LONG


def convolve_line(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, strides: Sequence[int], pads: Sequence[int]
) -> torch.Tensor:
    """Return the result [N, C, places] for [N, C, length] and filters [C, 1, width]."""
    y = torch.convolution(_line(x), w.unsqueeze(2), bias, [1, *strides], [0, *pads], [1, 1], False, [0, 0], len(w))
    return y.squeeze(2)


def differentiate_line(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mask: Sequence[bool], strides: Sequence[int],
    pads: Sequence[int],
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """Return the adjoints of what `convolve_line` takes, as far as `mask` asks for them."""
    by_pieces = mask[1] and w.shape[2] >= _MANY and list(strides) == [1]
    wanted, dx, dw = [mask[0], mask[1] and not by_pieces, False], None, None
    if any(wanted):
        adjoints = _gradients(_line(dy), _line(x), w.unsqueeze(2), wanted, [1, *strides], [0, *pads])
        dx, dw = (None if t is None else t.squeeze(2) for t in adjoints[:2])
    if by_pieces:
        dw = _by_pieces(dy, x, w.shape[2], pads[0])
    return dx, dw, dy.sum((0, 2)) if mask[2] else None


def _by_pieces(dy: torch.Tensor, x: torch.Tensor, width: int, pad: int) -> torch.Tensor:
    """Return the adjoint of filters [C, 1, width] of stride 1, from [N, C, places] and [N, C, length]."""
    lines, channels, places = dy.shape
    pieces, window = -(-places // _PIECE), _PIECE + width - 1
    beyond = pieces * _PIECE - places
    padded = functional.pad(x, (pad, pad + beyond))
    read = padded.unfold(2, window, _PIECE).transpose(0, 1).reshape(channels, lines * pieces, window)
    full = functional.pad(dy, (0, beyond)).view(lines, channels, pieces, _PIECE)
    written = full.permute(1, 3, 0, 2).reshape(channels, _PIECE, lines * pieces)
    products = torch.bmm(written, read)  # of each place in a piece with each that its window holds
    diagonals = products.as_strided((channels, width, _PIECE), (_PIECE * window, 1, window + 1))
    return diagonals.sum(2).unsqueeze(1)


def _line(x: torch.Tensor) -> torch.Tensor:
    """[N, C, 1, length], channels last"""
    return x.unsqueeze(2).contiguous(memory_format=torch.channels_last)


def _pairs(x: Sequence[int], dy: Sequence[int]) -> int:
    return math.prod(x[2:]) * math.prod(dy[2:])


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
        by = _by_pairs if _pairs(x.shape, dy.shape) <= _FEW_PAIRS else _by_columns
        dw = by(dy, x, w, strides, pads)
    return dx, dw, dy.sum((0, 2, 3)) if mask[2] else None


def _by_columns(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, strides: Sequence[int], pads: Sequence[int]
) -> torch.Tensor:
    last, parts = dy.contiguous(memory_format=torch.channels_last), list[torch.Tensor]()
    for start in range(0, w.shape[3], _COLUMNS):
        part = w[..., start : start + _COLUMNS]
        seen = _columns(x, start - pads[1], (dy.shape[3] - 1) * strides[1] + part.shape[3])
        dw = _gradients(last, seen, part, [False, True, False], strides, [pads[0], 0])[1]
        assert dw is not None
        parts.append(dw)
    return torch.cat(parts, 3)


def _by_pairs(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, strides: Sequence[int], pads: Sequence[int]
) -> torch.Tensor:
    images, channels = x.shape[:2]
    results = dy.reshape(images, channels, -1).permute(1, 2, 0).contiguous()  # bmm takes no factors with gaps
    pixels = x.reshape(images, channels, -1).permute(1, 0, 2).contiguous()
    pairs = torch.bmm(results, pixels)
    places = _places(tuple(x.shape[2:]), tuple(w.shape[2:]), tuple(strides), tuple(pads))
    return (pairs.view(channels, -1) @ places).view(w.shape)


@functools.lru_cache
def _places(
    image: tuple[int, ...], filters: tuple[int, ...], strides: tuple[int, ...], pads: tuple[int, ...]
) -> torch.Tensor:
    """Which number of a filter multiplies a pixel for a pixel of the result, [pairs, height · width], as 1."""
    pixels = torch.eye(math.prod(image)).view(-1, 1, *image)
    windows = functional.unfold(pixels, filters, padding=pads, stride=strides)
    return windows.permute(2, 0, 1).reshape(-1, math.prod(filters))


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
    begin = min(count, max(0, -first))
    end = max(begin, min(count, x.shape[3] - first))
    columns[..., :begin].zero_()
    columns[..., end:].zero_()
    columns[..., begin:end].copy_(x[..., first + begin : first + end])
    return columns
