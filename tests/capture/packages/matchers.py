"""Descriptors, matchers and warps of kornia."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, image, numbers

__all__: list[str] = []


def descriptor(name: str) -> Callable[[], nn.Module]:
    """A network of kornia over patches of one channel; its results have one as their norm."""

    def make() -> nn.Module:
        import kornia

        return Loss(lambda s, x: s.model(x).reshape(len(x), -1).cumsum(1), model=getattr(kornia.feature, name)(False))

    return make


for _name in ("HardNet", "SOSNet", "HyNet", "OriNet"):
    add(_name, "kornia", descriptor(_name), image(1, 32))


def sets(n: int) -> Batch:
    """Features of two sets of points."""
    return numbers(n, 5, 16), numbers(n, 6, 16, seed=1)


def assignment() -> nn.Module:
    """LightGlue's scores of a match for each pair of points."""
    from kornia.feature.lightglue import MatchAssignment

    return Loss(lambda s, a, b: s.model(a, b)[0], model=MatchAssignment(16))


def local_features() -> nn.Module:
    """LoFTR's transformer between two sets of features."""
    from kornia.feature.loftr.loftr_module.transformer import LocalFeatureTransformer

    settings = {"d_model": 16, "nhead": 2, "layer_names": ["self", "cross"], "attention": "linear"}
    return Loss(lambda s, a, b: s.model(a, b)[0], model=LocalFeatureTransformer(settings))


add("LightGlue's assignment", "kornia", assignment, sets)
add("LoFTR's transformer", "kornia", local_features, sets)


def warp(name: str, rows: int) -> Callable[[], nn.Module]:
    """Pictures that are warped by matrices near the unit matrix, which a layer computes."""

    def make() -> nn.Module:
        import kornia

        def forward(s: Any, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            matrix = torch.eye(3, dtype=x.dtype)[:rows] + 0.05 * s.model(h).view(-1, rows, 3)
            return getattr(kornia.geometry.transform, name)(x, matrix, (12, 12))  # type: ignore[no-any-return]

        return Loss(forward, model=nn.Linear(4, 3 * rows))

    return make


for _name, _rows in (("warp_perspective", 3), ("warp_affine", 2)):
    add(_name, "kornia", warp(_name, _rows), lambda n: (numbers(n, 3, 16, 16), numbers(n, 4)))


def corners() -> nn.Module:
    """Harris' response of a convolution."""
    import kornia

    return Loss(lambda s, x: kornia.feature.harris_response(s.model(x)), model=nn.Conv2d(3, 1, 3))


add("Harris' corners", "kornia", corners, image(3, 16))
