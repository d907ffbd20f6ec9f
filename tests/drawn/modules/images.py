"""Networks of images: up to four stages, one of them of the family, of one to three axes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from tests.drawn.draw import Draw
from tests.drawn.families import Families
from tests.drawn.modules.module import Sample, sample

__all__ = ["Images", "stage"]

stage = Families()
"""Stages of a network: a function of a draw and of Images that returns a module and its outputs' channels."""

SIZES = {1: (10, 16), 2: (7, 10), 3: (5, 6)}
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True)
class Images:
    """What comes into a stage.

    Attributes:
        rank: axes besides batch and channels.
        channels: divisible by 2.
    """

    rank: int
    channels: int

    def layer(self, name: str, *settings: object, **named: object) -> nn.Module:
        """A layer of torch.nn for this rank, such as "Conv"."""
        return getattr(nn, f"{name}{self.rank}d")(*settings, **named)


Stage = Callable[[Draw, Images], tuple[nn.Module, int]]


def family(function: Stage) -> Stage:
    """Register a stage, and the networks that have it as a family."""
    stage(function)

    @functools.wraps(function)
    def network(draw: Draw) -> Sample:
        return _network(draw, function)

    sample(network)
    return function


def _network(draw: Draw, function: Stage) -> Sample:
    """The stage among up to three others, in a memory format."""
    images = Images(draw.choice([1, 2, 2, 2, 3]), draw.choice([2, 4, 6]))
    stages = [stage[draw.choice(stage.turns)] for _ in range(draw.integer(0, 3))]
    stages.insert(draw.integer(0, len(stages)), function)
    layers, channels = [], images.channels
    for make in stages:
        layer, channels = make(draw, Images(images.rank, channels))
        layers.append(layer)
    last = FORMATS.get(images.rank + 2) if draw.flag(0.3) else None
    module = nn.Sequential(*layers)
    if last is not None and draw.flag():
        module = module.to(memory_format=last)

    def inputs() -> list[torch.Tensor]:
        x = draw.tensor(draw.integer(2, 3), images.channels, *draw.sizes(images.rank, *SIZES[images.rank]))
        return [x if last is None else x.contiguous(memory_format=last)]

    return Sample(f"{' '.join(str(module).split())} {last}", module, inputs)
