"""Gradients of instance normalisation, and of groups of two channels, for images with their channels last.

torch's kernel goes over the elements of a group one after the other, and with the channels last only those of one place
lie side by side: groups of one channel take six times as long as with the channels first. Sums over the places of all
channels at once do not mind.
"""

from __future__ import annotations

import torch

from ontrain.providers.torch.buffers import Buf, order_of
from ontrain.providers.torch.emitter import Emitter

__all__ = ["has_narrow_groups", "narrow_group_gradients"]

_CHANNELS, _PLACES = 2, 1024
"""Of a group at most, and of an image at least; the kernel is as fast on others."""


def has_narrow_groups(e: Emitter, x: Buf, groups: int) -> bool:
    """Return whether the gradient is computed here."""
    last = e.device.type == "cpu" and order_of(x.meta) is torch.channels_last and x.dtype == torch.float32
    return last and x.shape[1] <= _CHANNELS * groups and x.shape[2] * x.shape[3] >= _PLACES


def narrow_group_gradients(
    dy: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, inv: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the adjoints of images, scale and bias.

        dx = inv·(scale·dy − mean(scale·dy) − (x − mean)·inv²·mean(scale·dy·(x − mean))), means over a group

    Args:
        dy: [N, C, H, W], as all images here with their channels last.
        x: [N, C, H, W].
        mean: [N, groups].
        inv: [N, groups], the inverse deviation.
        scale: [C].
    """
    (images, channels, *size), groups = x.shape, mean.shape[1]
    grouped, scales = (images, groups, channels // groups), scale.view(groups, -1)
    above, rows = (t.permute(0, 2, 3, 1).flatten(1, 2) for t in (dy, x))
    d_bias, products = above.sum(1).view(grouped), torch.mul(above, rows).sum(1).view(grouped)
    share = inv / (rows.shape[1] * grouped[2])
    of_dy, of_products = ((sums * scales).sum(-1) for sums in (d_bias, products))
    of_x = (of_dy * mean - of_products) * inv.square() * share
    shift = -of_x * mean - of_dy * share
    by_x, shifts = (t[..., None].expand(grouped).reshape(images, 1, channels) for t in (of_x, shift))
    factors = (inv[..., None] * scales).view(images, 1, channels)
    dx = torch.addcmul(shifts, rows, by_x).addcmul_(above, factors)
    d_scale = ((products - d_bias * mean[..., None]) * inv[..., None]).sum(0)
    return dx.view(images, *size, channels).permute(0, 3, 1, 2), d_scale.view(channels), d_bias.sum(0).view(channels)
