"""Pools, convolutions, padding, folds and samples of grids."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from tests.drawn.calls.call import Call, call
from tests.drawn.draw import Draw


def _window(draw: Draw, rank: int) -> dict:
    """Kernel, stride, padding of at most half a kernel, and whether sizes are rounded up."""
    kernel = draw.sizes(rank, 1, 4)
    return dict(
        kernel_size=kernel,
        stride=draw.choice([None, draw.sizes(rank, 1, 3)]),
        padding=tuple(draw.integer(0, k // 2) for k in kernel),
        ceil_mode=draw.flag(),
    )


def _images(draw: Draw, rank: int, channels: int = 3, low: int = 7, high: int = 9):
    return lambda: draw.tensor(2, channels, *draw.sizes(rank, low, high))


@call
def maximum_pool(draw: Draw) -> Call:
    """With padding and dilation."""
    rank = draw.integer(1, 3)
    settings = _window(draw, rank) | dict(dilation=draw.choice([1, draw.sizes(rank, 1, 2)]))
    pool = getattr(F, f"max_pool{rank}d")
    return Call(f"max_pool{rank}d {settings}", lambda x: pool(x, **settings), _images(draw, rank))


@call
def places_of_maxima(draw: Draw) -> Call:
    """The indices that a maximum pool returns weigh its values."""
    rank = draw.integer(1, 3)
    settings = _window(draw, rank) | dict(return_indices=True)
    pool = getattr(F, f"max_pool{rank}d")

    def weighed(x):
        largest, places = pool(x, **settings)
        return largest * (places + 1).to(largest.dtype)

    return Call(f"max_pool{rank}d {settings}", weighed, _images(draw, rank))


@call
def average_pool(draw: Draw) -> Call:
    """With and without its padding, and by another divisor."""
    rank = draw.integer(1, 3)
    settings = _window(draw, rank) | dict(count_include_pad=draw.flag())
    if rank > 1 and draw.flag():
        settings["divisor_override"] = draw.integer(1, 5)
    pool = getattr(F, f"avg_pool{rank}d")
    return Call(f"avg_pool{rank}d {settings}", lambda x: pool(x, **settings), _images(draw, rank))


@call
def power_pool(draw: Draw) -> Call:
    """lp_pool of positive numbers."""
    rank = draw.integer(1, 2)
    settings = dict(
        norm_type=draw.choice([1.0, 2.0, 3.0]), kernel_size=draw.integer(1, 4),
        stride=draw.choice([None, draw.integer(1, 3)]), ceil_mode=draw.flag(),
    )  # fmt: skip
    pool = getattr(F, f"lp_pool{rank}d")
    return Call(f"lp_pool{rank}d {settings}", lambda x: pool(x.abs() + 0.1, **settings), _images(draw, rank, low=5))


@call
def adaptive_pool(draw: Draw) -> Call:
    """To sizes that are stated, or stay."""
    rank, which = draw.integer(1, 3), draw.choice(["max", "avg"])
    sizes = tuple(draw.choice([None, draw.integer(1, 7)]) for _ in range(rank))
    size = sizes if rank > 1 and draw.flag() else draw.integer(1, 6)
    pool = getattr(F, f"adaptive_{which}_pool{rank}d")
    return Call(f"adaptive_{which}_pool{rank}d {size}", lambda x: pool(x, size), _images(draw, rank, low=5))


@call
def convolution(draw: Draw) -> Call:
    """In groups, with each kind of padding."""
    rank, groups = draw.integer(1, 3), draw.choice([1, 2, 3])
    channels, outputs = groups * draw.integer(1, 2), groups * draw.integer(1, 2)
    stride = draw.sizes(rank, 1, 2)
    named = ["valid", "same"] if max(stride) == 1 else ["valid"]
    module = getattr(nn, f"Conv{rank}d")(
        channels, outputs, draw.sizes(rank, 1, 3), stride, draw.choice([draw.sizes(rank, 0, 2), *named]),
        draw.sizes(rank, 1, 2), groups, draw.flag(), draw.choice(["zeros", "reflect", "circular", "replicate"]),
    )  # fmt: skip
    return Call(str(module), lambda m, x: m(x), _images(draw, rank, channels, 5, 8), module)


@call
def transposed_convolution(draw: Draw) -> Call:
    """In groups, with padding of both sides."""
    rank, groups = draw.integer(1, 3), draw.choice([1, 2, 3])
    channels, outputs = groups * draw.integer(1, 2), groups * draw.integer(1, 2)
    stride, dilation = draw.sizes(rank, 1, 2), draw.sizes(rank, 1, 2)
    further = tuple(draw.integer(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True))
    module = getattr(nn, f"ConvTranspose{rank}d")(
        channels, outputs, draw.sizes(rank, 1, 3), stride, draw.sizes(rank, 0, 2), further,
        groups=groups, bias=draw.flag(), dilation=dilation,
    )  # fmt: skip
    return Call(str(module), lambda m, x: m(x), _images(draw, rank, channels, 5, 8), module)


@call
def padding(draw: Draw) -> Call:
    """In each mode; a negative width cuts off."""
    rank = draw.integer(1, 3)
    mode = draw.choice(["constant", "constant", "reflect", "replicate", "circular"])
    widths = draw.sizes(2 * rank, 0 if mode == "circular" else -1, 2)
    settings = dict(value=draw.choice([0.0, 1.5])) if mode == "constant" else {}
    return Call(
        f"pad {mode} {widths} {settings}", lambda x: F.pad(x, widths, mode, **settings), _images(draw, rank, low=4)
    )


@call
def grid_sample(draw: Draw) -> Call:
    """At places inside and outside of the image."""
    rank = draw.choice([2, 3])
    settings = dict(
        mode=draw.choice(["bilinear", "nearest", *(["bicubic"] if rank == 2 else [])]),
        padding_mode=draw.choice(["zeros", "border", "reflection"]), align_corners=draw.flag(),
    )  # fmt: skip
    return Call(
        f"grid_sample {rank} {settings}",
        lambda x, grid: F.grid_sample(x, grid, **settings),
        lambda: (
            draw.tensor(2, 2, *draw.sizes(rank, 3, 6)),
            draw.uniform(2, *draw.sizes(rank, 2, 4), rank) * 3 - 1.5,
        ),
    )


@call
def fold(draw: Draw) -> Call:
    """Squares of what unfold returns, folded again."""
    settings = dict(
        kernel_size=draw.sizes(2, 1, 3), dilation=draw.sizes(2, 1, 2), padding=draw.sizes(2, 0, 1),
        stride=draw.sizes(2, 1, 2),
    )  # fmt: skip
    return Call(
        f"fold {settings}",
        lambda x: F.fold(F.unfold(x, **settings).square(), x.shape[-2:], **settings),
        lambda: draw.tensor(2, 2, *draw.sizes(2, 6, 8)),
    )
