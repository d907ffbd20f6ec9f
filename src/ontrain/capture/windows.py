"""Windows as long as a size says, `torch.hann_window(x.shape[1])`: torch's own take a number of the capture for it.

Source: https://docs.pytorch.org/docs/stable/torch.html#spectral-ops.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["WINDOWS"]

_Window = Callable[..., torch.Tensor]


def _counted(own: _Window, shape: _Window) -> _Window:
    """Return what computes a window of a size that varies of its places, from 0 to 1, and calls torch's for another."""

    @functools.wraps(own)
    def window(
        window_length: Any, periodic: bool = True, *settings: float, dtype: torch.dtype | None = None, **named: Any
    ) -> torch.Tensor:
        if not isinstance(window_length, torch.SymInt) or named.get("out") is not None or window_length == 1:
            return own(window_length, periodic, *settings, dtype=dtype, **named)
        values = {name: named.pop(name) for name in ("alpha", "beta") if name in named}
        count: Any = window_length
        places = torch.arange(count, dtype=torch.float64, device=named.pop("device", None))
        weights = shape(places / (count if periodic else count - 1), *settings, **values)
        return weights.to(dtype or torch.get_default_dtype()).requires_grad_(named.get("requires_grad", False))

    return window


def _hamming(places: torch.Tensor, alpha: float = 0.54, beta: float = 0.46) -> torch.Tensor:
    return alpha - beta * (2 * math.pi * places).cos()


def _hann(places: torch.Tensor) -> torch.Tensor:
    return _hamming(places, 0.5, 0.5)


def _blackman(places: torch.Tensor) -> torch.Tensor:
    return 0.42 - 0.5 * (2 * math.pi * places).cos() + 0.08 * (4 * math.pi * places).cos()


def _bartlett(places: torch.Tensor) -> torch.Tensor:
    return 1 - (2 * places - 1).abs()


def _kaiser(places: torch.Tensor, beta: float = 12.0) -> torch.Tensor:
    largest: torch.Tensor = torch.special.i0(torch.full((), beta, dtype=places.dtype, device=places.device))
    weights: torch.Tensor = torch.special.i0(beta * (1 - (2 * places - 1).square()).clamp(min=0.0).sqrt())
    return weights / largest


WINDOWS: dict[_Window, _Window] = {
    own: _counted(own, shape)
    for own, shape in (
        (torch.bartlett_window, _bartlett),
        (torch.blackman_window, _blackman),
        (torch.hamming_window, _hamming),
        (torch.hann_window, _hann),
        (torch.kaiser_window, _kaiser),
    )
}
"""What stands in for each window of torch's."""
