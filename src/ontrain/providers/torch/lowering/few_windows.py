"""Convolutions of a few windows by large filters, as products of the windows.

The last convolutions of a network that gets small images, or few, have hardly more windows than a vector has numbers.
oneDNN goes over their filters window by window, and its gradients take up to eight times as long as the products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn import functional

from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.weights import LINEAR

__all__ = ["LARGE", "LARGE_GRADIENTS", "convolve", "differentiate", "has_few_windows"]

_FEW = 96
"""Windows of all images together, at most."""
LARGE, LARGE_GRADIENTS = 1 << 23, 1 << 21
"""Elements of filters from which on the product takes less time: forwards, where oneDNN loses less, and backwards."""

_Geometry = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Strides, pads and dilations of both axes."""


def has_few_windows(e: Emitter, x: Buf, w: Buf, y: Sequence[int], group: int, large: int) -> bool:
    """Return whether products of windows take less time.

    Args:
        e: where they are emitted.
        x, w: images and filters.
        y: the shape of the result.
        group: groups of channels.
        large: elements that the filters must have.
    """
    fits = e.reformulates(x, w) and LINEAR is not None and group == 1 and len(x.shape) == 4
    return fits and 0 < y[0] * math.prod(y[2:]) <= _FEW and math.prod(w.shape) >= large


def convolve(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, *geometry: Sequence[int]) -> torch.Tensor:
    """Return the result [N, M, H, W] for images [N, C, …] and filters [M, C, …]."""
    y: torch.Tensor = LINEAR(_windows(x, w, geometry), w.flatten(1), bias, "none", [], "")
    places = [
        (size + 2 * pad - gap * (span - 1) - 1) // step + 1
        for size, span, step, pad, gap in zip(x.shape[2:], w.shape[2:], *geometry, strict=True)
    ]
    return y.view(len(x), *places, len(w)).permute(0, 3, 1, 2)


def differentiate(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mask: Sequence[bool], *geometry: Sequence[int]
) -> tuple[torch.Tensor | None, ...]:
    """Return the adjoints of images, filters and bias, as far as `mask` asks for them."""
    rows = dy.permute(0, 2, 3, 1).reshape(-1, len(w))
    dx = dw = None
    if mask[0]:
        windows = LINEAR(rows, w.flatten(1).t(), None, "none", [], "").view(len(x), -1, w[0].numel())
        strides, pads, dilations = map(tuple, geometry)
        dx = functional.fold(windows.transpose(1, 2), x.shape[2:], w.shape[2:], dilations, pads, strides)
    if mask[1]:
        dw = (rows.t() @ _windows(x, w, geometry)).view(w.shape)
    return dx, dw, rows.sum(0) if mask[2] else None


def _windows(x: torch.Tensor, w: torch.Tensor, geometry: Sequence[Sequence[int]]) -> torch.Tensor:
    """What each filter is multiplied with, [windows, C · height · width]."""
    strides, pads, dilations = map(tuple, geometry)
    columns = functional.unfold(x, w.shape[2:], dilations, pads, strides)
    return columns.transpose(1, 2).reshape(-1, columns.shape[1])
