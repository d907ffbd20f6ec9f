"""Sums over a batch of images with their channels last, in single precision, without one long sum.

torch's kernels add up such a batch row after row in single precision: the mean of 25,000 rows is off by 1e-4 of it, and
the error of a gradient's mean, which is the same in each row, adds up in the weights below. Here each row holds the
channels of many rows, so that the same kernels make many short sums, which are added up at the end.
"""

from __future__ import annotations

import torch

from ontrain.internals import private

__all__ = ["FEW", "FEW_GRADIENTS", "batch_statistics", "gradients_by_parts", "parts"]

FEW = 256
"""Rows whose statistics the kernel gets about as right as one that adds up in double precision."""
FEW_GRADIENTS = 2048
"""Rows whose gradients the kernel may sum up at once: of fewer, parts would cost more time than the digits are worth,
because an error there only adds to a gradient, whereas one of the statistics may turn the sign before a rectifier."""
_PARTS = 64
"""At most."""
_WIDE, _WIDE_GRADIENTS = 2048, 1024
"""Sums that a kernel makes side by side, at most: of more than these, and what they are made of, the first-level cache
loses some from row to row, and the kernels take up to twice as long."""
_SHORT = 128
"""Rows of a part at least; the sums of shorter ones would not be more right, and there would be more of them to add."""
_STRIP = 1 << 19
"""Elements that are gone over at a time: three such pieces fit the last cache, and each call is worth its threads."""
_NEAR = 8.0
"""Deviations from zero up to which a mean may be subtracted after the product: it costs three bits at most."""


def parts(rows: int) -> int:
    """Return into how many equal parts a number of rows falls."""
    return _divisor(rows, min(_PARTS, rows // _SHORT))


def batch_statistics(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return mean, biased variance and inverse deviation of each channel of images [N, C, H, W], channels last."""
    calls = [torch.batch_norm_update_stats(folded, None, None, 0.0) for folded in _folded(x, _WIDE)]
    means, variances = (torch.cat(sums).view(-1, x.shape[1]) for sums in zip(*calls, strict=True))
    mean = means.mean(0)
    var = variances.mean(0).add_((means - mean).square_().mean(0))
    return mean, var, torch.rsqrt(var + eps)


def gradients_by_parts(
    dy: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, mean: torch.Tensor, inv: torch.Tensor, eps: float,
    dx: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Write the adjoint of images and return those of scale and bias, for a normalisation by the batch's statistics.

        dx = scale·inv·(dy − mean(dy) − (x − mean)·inv²·mean(dy·(x − mean)))

    The kernel's sums of dy and of dy·(x − mean)·inv are the adjoints of bias and scale. dx is linear in dy and x.

    Args:
        dy: [N, C, H, W], as all images here with their channels last.
        x: [N, C, H, W].
        scale: [C].
        mean: [C].
        inv: [C], the inverse deviation.
        eps: what the deviation was computed with.
        dx: [N, C, H, W], written.
    """
    folded = _folded(x, _WIDE_GRADIENTS)
    beside = folded.shape[2] // len(mean)
    means, inverses = torch.stack((mean, inv)).unsqueeze(1).expand(2, beside, len(mean)).reshape(2, -1)
    kernel = private("torch.ops.aten.native_batch_norm_backward")
    calls = [
        kernel(above, rows, None, None, None, means, inverses, True, eps, [False, True, True])[1:]
        for above, rows in zip(_folded(dy, _WIDE_GRADIENTS), folded, strict=True)
    ]
    d_scale, d_bias = (torch.cat(sums).view(-1, len(mean)).sum(0) for sums in zip(*calls, strict=True))
    share = -len(scale) / x.numel()
    of_dy = scale * inv
    of_x = (of_dy * inv).mul_(d_scale).mul_(share)
    near = bool((mean.abs() * inv).max() < _NEAR)
    _combine(dy, x, mean, (of_dy * d_bias).mul_(share), of_x, of_dy, dx, near=near)
    return d_scale, d_bias


def _combine(
    dy: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, constant: torch.Tensor, of_x: torch.Tensor,
    of_dy: torch.Tensor, dx: torch.Tensor, *, near: bool,
) -> None:  # fmt: skip
    """constant + (x − mean)·of_x + dy·of_dy, so many rows at a time that they stay in the cache from call to call.

    Of a channel whose mean is far above its deviation only the difference has digits left.
    """
    into, images, above = (t.permute(0, 2, 3, 1).view(-1, len(mean)) for t in (dx, x, dy))
    if near:
        constant = torch.addcmul(constant, mean, of_x, value=-1)
    step = max(1, _STRIP // len(mean))
    for start in range(0, len(into), step):
        strip, source = into[start : start + step], images[start : start + step]
        if not near:
            source = torch.sub(source, mean, out=strip)
        torch.addcmul(constant, source, of_x, out=strip)
        strip.addcmul_(above[start : start + step], of_dy)


def _folded(x: torch.Tensor, wide: int) -> torch.Tensor:
    """The rows of images as several parts side by side, as many as `wide` has room for: [calls, rows, parts · C]."""
    channels = x.shape[1]
    rows = x.numel() // channels
    count = parts(rows)
    beside = _divisor(count, wide // channels)
    return x.permute(0, 2, 3, 1).reshape(count // beside, rows // count, beside * channels)


def _divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is at most `most`, and 1 at least."""
    return next(divisor for divisor in range(max(1, most), 0, -1) if number % divisor == 0)
