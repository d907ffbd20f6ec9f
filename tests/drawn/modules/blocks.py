"""Normalizations, activations, and blocks of several layers."""

from __future__ import annotations

import torch
from torch import nn

from tests.drawn.draw import Draw
from tests.drawn.modules.images import Images, family

ACTIVATIONS = [
    nn.ReLU, nn.GELU, nn.SiLU, nn.Hardswish, nn.ELU, nn.LeakyReLU, nn.Mish, nn.Softplus, nn.Hardtanh, nn.ReLU6,
    nn.PReLU, nn.SELU, nn.CELU, nn.Sigmoid, nn.Tanh, nn.Softsign, nn.Tanhshrink, nn.LogSigmoid, nn.Hardsigmoid,
    lambda: nn.Softmax(1), lambda: nn.LogSoftmax(-1), lambda: nn.GLU(-1), lambda: nn.Softmin(1),
    lambda: nn.RReLU(0.2, 0.2), lambda: nn.ReLU(inplace=True), lambda: nn.Hardswish(inplace=True),
]  # fmt: skip


@family
def batch_norm(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """Running statistics by a factor, by the mean of all batches, or none."""
    settings = dict(eps=draw.choice([1e-5, 0.1]), momentum=draw.choice([0.1, None, 0.5]), affine=draw.flag(0.8))
    return images.layer("BatchNorm", images.channels, track_running_stats=draw.flag(0.8), **settings), images.channels


@family
def instance_norm(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """With running statistics or without."""
    layer = images.layer("InstanceNorm", images.channels, affine=draw.flag(), track_running_stats=draw.flag())
    return layer, images.channels


@family
def group_norm(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """In one group, two, or as many as channels."""
    layer = nn.GroupNorm(draw.choice([1, 2, images.channels]), images.channels, affine=draw.flag(0.8))
    return layer, images.channels


class ChannelNorm(nn.Module):
    """LayerNorm or RMSNorm of channels."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.movedim(1, -1)).movedim(-1, 1)


@family
def channel_norm(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """LayerNorm or RMSNorm of channels, or of neighbouring ones."""
    if draw.flag(0.3):
        return nn.LocalResponseNorm(draw.integer(1, 3), 0.1), images.channels
    return ChannelNorm(draw.choice([nn.LayerNorm, nn.RMSNorm])(images.channels)), images.channels


@family
def activation(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """Of each kind."""
    layer = draw.choice(ACTIVATIONS)()
    return nn.Sequential(ChannelNorm(nn.LayerNorm(images.channels)), layer), images.channels


@family
def dropout(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """That drops nothing, or is an identity."""
    names = [nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.Identity]
    return draw.choice([*names, getattr(nn, f"Dropout{images.rank}d")])(0.0), images.channels


class Residual(nn.Module):
    """A block's outputs on top of what came in."""

    def __init__(self, block: nn.Module, first: bool) -> None:
        super().__init__()
        self.block, self.first = block, first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.block(x) if self.first else self.block(x).add_(x)


@family
def residual(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """Convolution, norm and activation twice, and what came in."""

    def unit() -> list[nn.Module]:
        layer = images.layer("Conv", images.channels, images.channels, 3, padding=1, bias=False)
        return [layer, images.layer("BatchNorm", images.channels), nn.ReLU(inplace=draw.flag())]

    return Residual(nn.Sequential(*unit(), *unit()[:2]), draw.flag()), images.channels


class Squeezed(nn.Module):
    """Channels weighed by what all pixels say."""

    def __init__(self, images: Images) -> None:
        super().__init__()
        width = images.channels
        self.weights = nn.Sequential(nn.Linear(width, 2), nn.SiLU(), nn.Linear(2, width), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.weights(x.flatten(2).mean(-1))
        return x * weights.view(*weights.shape, *[1] * (x.dim() - 2))


@family
def squeezed(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """Squeeze and excitation."""
    return Squeezed(images), images.channels


class Branches(nn.Module):
    """Several layers' outputs beside one another."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


@family
def branches(draw: Draw, images: Images) -> tuple[nn.Module, int]:
    """Convolutions of several widths and a pool, beside one another."""
    convolutions = [images.layer("Conv", images.channels, 2, k, padding=k // 2) for k in draw.sample([1, 3, 5], 2)]
    return Branches(*convolutions, images.layer("AvgPool", 3, 1, 1)), 4 + images.channels
