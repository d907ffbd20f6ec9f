"""Convolutions, pools, interpolations and what moves pixels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from tests.drawn.draw import Draw
from tests.drawn.modules.images import Images, family


def _groups(draw: Draw, images: Images) -> int:
    return draw.choice([1, 2, images.channels])


@family
def convolution(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """In groups, dilated, with a stride and each kind of padding."""
    groups = _groups(draw, images)
    outputs = max(groups, 2) * draw.integer(1, 2)
    kernel, dilation = draw.sizes(images.rank, 1, 3), draw.sizes(images.rank, 1, 2)
    stride = draw.choice([1, draw.sizes(images.rank, 1, 2)])
    padding = draw.choice(["same" if stride == 1 else 1, 1, 2, draw.sizes(images.rank, 0, 2)])
    modes = draw.choice(["zeros", "zeros", "reflect", "circular", "replicate"])
    layer = images.layer(
        "Conv", images.channels, outputs, kernel, stride, padding, dilation, groups, draw.flag(), modes
    )  # fmt: skip
    return layer, outputs


@family
def depthwise(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """A filter or two of each channel, and products of channels behind."""
    outputs = images.channels * draw.integer(1, 2)
    kernel = draw.choice([1, 3, 5])
    layer = images.layer("Conv", images.channels, outputs, kernel, padding=kernel // 2, groups=images.channels)
    return nn.Sequential(layer, images.layer("Conv", outputs, 4, 1, bias=draw.flag())), 4


@family
def transposed(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """A transposed convolution in groups."""
    groups = _groups(draw, images)
    outputs = max(groups, 2)
    stride, dilation = draw.sizes(images.rank, 1, 2), draw.sizes(images.rank, 1, 2)
    further = tuple(draw.integer(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True))
    layer = images.layer(
        "ConvTranspose", images.channels, outputs, draw.sizes(images.rank, 1, 3), stride, draw.sizes(images.rank, 0, 1),
        further, groups, draw.flag(), dilation,
    )  # fmt: skip
    return layer, outputs


@family
def parametrized(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """A convolution whose weight is normalized, by its norm or by its largest singular value."""
    layer = images.layer("Conv", images.channels, 4, 3, padding=1)
    way = draw.choice([parametrizations.weight_norm, parametrizations.spectral_norm, nn.utils.spectral_norm])
    return way(layer), 4


@family
def maximum_pool(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """With padding and dilation."""
    kernel = draw.integer(2, 3)
    layer = images.layer(
        "MaxPool", kernel, draw.integer(1, 2), draw.integer(0, kernel // 2), draw.integer(1, 2), ceil_mode=draw.flag()
    )
    return layer, images.channels


@family
def average_pool(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """With its padding and without."""
    kernel = draw.integer(1, 3)
    layer = images.layer("AvgPool", kernel, draw.choice([None, 1, 2]), kernel // 2, draw.flag(), draw.flag())
    return layer, images.channels


@family
def adaptive_pool(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """To sizes that are stated, some larger than what comes in."""
    sizes = draw.sizes(images.rank, 3, 7)
    return images.layer(draw.choice(["AdaptiveAvgPool", "AdaptiveMaxPool"]), sizes), images.channels


@family
def unpooled(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """Maxima that go back to their places."""
    return Unpooled(images), images.channels


class Unpooled(nn.Module):
    """A maximum pool and its inverse."""

    def __init__(self, images: Images) -> None:
        super().__init__()
        self.pool = images.layer("MaxPool", 2, return_indices=True)
        self.inverse = images.layer("MaxUnpool", 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        largest, places = self.pool(x)
        return self.inverse(largest, places, output_size=x.shape)


@family
def interpolation(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """To a size or by a factor, in each mode of the rank."""
    smooth = {1: ["linear"], 2: ["bilinear", "bicubic"], 3: ["trilinear"]}[images.rank]
    mode = draw.choice(["nearest", "nearest-exact", "area", *smooth, *smooth])
    settings: dict = dict(mode=mode)
    if mode in smooth:
        settings["align_corners"] = draw.flag()
        settings["antialias"] = images.rank == 2 and draw.flag(0.3)
    if draw.flag():
        settings["size"] = draw.sizes(images.rank, 3, 9)
    else:
        settings["scale_factor"] = draw.choice([0.5, 1.5, 2.0, 0.7])
        settings["recompute_scale_factor"] = draw.choice([None, True])
    return Interpolation(settings), images.channels


class Interpolation(nn.Module):
    """F.interpolate with settings."""

    def __init__(self, settings: dict) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, **self.settings)

    def extra_repr(self) -> str:
        return str(self.settings)


@family
def padding(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """Padded in a mode."""
    name = draw.choice(["ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad"])
    return images.layer(name, draw.sizes(2 * images.rank, 0, 2)), images.channels


@family
def shuffle(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """Channels in another order, or become pixels and back."""
    if images.rank != 2 or draw.flag():
        return nn.ChannelShuffle(2), images.channels
    return nn.Sequential(
        nn.Conv2d(images.channels, 8, 1), nn.PixelShuffle(2), nn.ReLU(), nn.PixelUnshuffle(2), nn.PixelShuffle(2)
    ), 2  # fmt: skip
