"""Estimators of sbi, and transforms of pyro."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, numbers

__all__: list[str] = []


def estimator(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """An estimator of sbi that is built for points of three numbers and conditions of two."""

    def make() -> nn.Module:
        from sbi.neural_nets import net_builders

        built = getattr(net_builders, name)(numbers(20, 3), numbers(20, 2), hidden_features=8, **settings)
        likely = name != "build_mlp_classifier"
        return Loss(lambda s, x, y: s.model.loss(x, y) if likely else s.model(x, y), model=built)

    return make


def conditioned(n: int) -> Batch:
    """Points and conditions."""
    return numbers(3 * n, 3), numbers(3 * n, 2, seed=1)


for _name, _builder, _settings in (
    ("MAF", "build_maf", {"num_transforms": 2}), ("NSF", "build_nsf", {"num_transforms": 2}),
    ("mixture density network", "build_mdn", {}), ("MADE", "build_made", {}),
    ("zuko's MAF", "build_zuko_maf", {"num_transforms": 2}), ("ratio classifier", "build_mlp_classifier", {}),
):  # fmt: skip
    add(f"{_name} of sbi", "sbi", estimator(_builder, **_settings), conditioned)


def transform(name: str, *arguments: Any, **settings: Any) -> Callable[[], nn.Module]:
    """A transform of pyro under the likelihood of normal numbers."""

    def make() -> nn.Module:
        from pyro.distributions import transforms

        def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
            y = s.model(x)
            loss: torch.Tensor = y.pow(2).mean() - s.model.log_abs_det_jacobian(x, y).mean()
            return loss

        return Loss(forward, model=getattr(transforms, name)(4, *arguments, **settings))

    return make


for _name, _transform, _arguments, _settings in (
    ("affine autoregression", "affine_autoregressive", ([8],), {}), ("affine coupling", "affine_coupling", ([8],), {}),
    ("spline", "spline", (), {"count_bins": 4}), ("planar flow", "planar", (), {}), ("radial flow", "radial", (), {}),
    ("Sylvester flow", "sylvester", (2,), {}), ("Householder flow", "householder", (2,), {}),
    ("polynomial flow", "polynomial", ([8],), {}),
    ("spline autoregression", "spline_autoregressive", ([8],), {"count_bins": 4}),
    ("neural autoregression", "neural_autoregressive", ([8],), {"width": 4, "activation": "sigmoid"}),
    ("batch normalisation", "batchnorm", (), {}),
):  # fmt: skip
    add(
        f"{_name} of pyro",
        "pyro-ppl",
        transform(_transform, *_arguments, **_settings),
        lambda n: (numbers(3 * n, 4),),
        "pyro",
    )
