"""Convolutions by filters of one pixel over few pixels, while they are trained, as products of matrices.

A pixel with its channels is a row of a matrix where channels lie last. oneDNN's convolution puts the filters into an
order of its own at each call, forwards and twice backwards. For a few hundred pixels that takes longer than the
product, and the filters' gradient is a product that goes where it belongs, without a copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ontrain.providers.torch.buffers import Buf, order_of
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.convolution_products import image_rows
from ontrain.providers.torch.lowering.product import Factors, multiply
from ontrain.providers.torch.weights import LINEAR

__all__ = ["convolve", "differentiate", "has_few_points"]

_FEW = 2500
"""Pixels of all images together, at most."""
_LEAST = 16
"""Channels before and behind, at least."""


def has_few_points(
    e: Emitter, x: Buf, w: Buf, strides: Sequence[int], pads: Sequence[tuple[int, int]], group: int
) -> bool:  # fmt: skip
    """Return whether products of pixels take less time.

    Args:
        e: where they are emitted.
        x, w: images, with their channels last, and filters.
        strides: of both axes.
        pads: before and behind each axis.
        group: groups of channels.
    """
    if not e.reformulates(x, w) or LINEAR is None or group != 1 or len(x.shape) != 4:
        return False
    if order_of(x.meta) is not torch.channels_last or math.prod(w.shape[2:]) != 1 or e.unchanging(w) is not None:
        return False
    point = set(strides) == {1} and not any(map(any, pads))
    return point and 1 < x.shape[0] * math.prod(x.shape[2:]) <= _FEW and min(w.shape[:2]) >= _LEAST


def convolve(e: Emitter, x: Buf, w: Buf, bias: Buf | None, out: Buf) -> None:
    """Emit the result [N, M, H, W] for images [N, C, H, W] and filters [M, C, 1, 1]."""
    _multiply(e, image_rows(e, x), e.view(_matrix(e, w), torch.t), out, bias)


def differentiate(e: Emitter, dy: Buf, x: Buf, w: Buf, outs: Sequence[Buf | None]) -> None:
    """Emit the adjoints of images, filters and bias, as far as `outs` has places for them; dy lies as x does."""
    above, (dx, dw, db) = image_rows(e, dy), outs
    if dx is not None:
        _multiply(e, above, _matrix(e, w), dx)
    if dw is not None:
        multiply(e, Factors(e.view(above, torch.t), image_rows(e, x), _matrix(e, dw)))
    if db is not None:
        e.call(torch.sum, above, [0], out=db)


def _multiply(e: Emitter, rows: Buf, factor: Buf, images: Buf, bias: Buf | None = None) -> None:
    """Emit a product whose rows are the pixels of images, which lie in any order."""
    last = order_of(images.meta) is torch.channels_last
    place = images if last else e.new(images.shape, images.dtype, torch.channels_last)
    multiply(e, Factors(rows, factor, image_rows(e, place), bias))
    if place is not images:
        e.copy(place, images)


def _matrix(e: Emitter, filters: Buf) -> Buf:
    """[M, C]"""
    return e.view(filters, lambda t: t.flatten(1))
