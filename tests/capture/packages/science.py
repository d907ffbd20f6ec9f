"""Differential equations, Gaussian processes, operators, flows and sound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, image, numbers

__all__: list[str] = []


class Field(nn.Module):
    """The right side of an ordinary differential equation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(y))


def ode(method: str) -> Callable[[], nn.Module]:
    """An equation solved with steps of one length."""

    def make() -> nn.Module:
        from torchdiffeq import odeint

        def forward(s: Any, y: torch.Tensor) -> torch.Tensor:
            times = torch.linspace(0, 1, 3, dtype=y.dtype)
            return odeint(s.field, y, times, method=method, options={"step_size": 0.25})[-1]

        return Loss(forward, field=Field())

    return make


add("odeint, rk4", "torchdiffeq", ode("rk4"), lambda n: (numbers(n, 3),))
add("odeint, midpoint", "torchdiffeq", ode("midpoint"), lambda n: (numbers(n, 3),))


class Controlled(nn.Module):
    """The matrix of a controlled differential equation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 6)

    def forward(self, t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(z)).unflatten(-1, (3, 2))


def cde(*, adjoint: bool) -> Callable[[], nn.Module]:
    """A controlled equation along a cubic interpolation."""

    def make() -> nn.Module:
        import torchcde

        def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
            path = torchcde.CubicSpline(torchcde.hermite_cubic_coefficients_with_backward_differences(x))
            start = s.start(path.evaluate(path.interval[0]))
            return torchcde.cdeint(X=path, func=s.field, z0=start, t=path.interval, adjoint=adjoint, method="rk4",
                                   options={"step_size": 0.5})[:, -1]  # fmt: skip

        return Loss(forward, field=Controlled(), start=nn.Linear(2, 3))

    return make


add("cdeint", "torchcde", cde(adjoint=False), lambda n: (numbers(n, 4, 2),))
add("cdeint with adjoint=True", "torchcde", cde(adjoint=True), lambda n: (numbers(n, 4, 2),))


def process() -> nn.Module:
    """The marginal likelihood of an exact Gaussian process."""
    import gpytorch

    class Prior(gpytorch.models.ExactGP):
        def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    def forward(s: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        s.prior.set_train_data(x, y, strict=False)
        return -gpytorch.mlls.ExactMarginalLogLikelihood(s.likelihood, s.prior)(s.prior(x), y)

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    return Loss(forward, prior=Prior(numbers(4, 2), numbers(4), likelihood), likelihood=likelihood)


add("exact Gaussian process", "gpytorch", process, lambda n: (numbers(3 * n, 2), numbers(3 * n)))


def operator(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A neural operator."""

    def make() -> nn.Module:
        import neuralop.models

        return Loss(model=getattr(neuralop.models, name)(in_channels=2, out_channels=1, **settings))

    return make


add("FNO", "neuraloperator", operator("FNO", n_modes=(4, 4), hidden_channels=6, n_layers=2),
    lambda n: (numbers(n, 2, 4 * n, 4 * n),), "neuralop", "tensorly")  # fmt: skip
add("TFNO", "neuraloperator", operator("TFNO", n_modes=(4, 4), hidden_channels=6, n_layers=1, rank=0.5),
    lambda n: (numbers(n, 2, 4 * n, 4 * n),), "neuralop", "tensorly")  # fmt: skip


def flow(kind: str) -> Callable[[], nn.Module]:
    """A flow's likelihood."""

    def make() -> nn.Module:
        from nflows import distributions, flows, transforms

        layers = {
            "maf": lambda: transforms.MaskedAffineAutoregressiveTransform(features=4, hidden_features=8),
            "spline": lambda: transforms.MaskedPiecewiseRationalQuadraticAutoregressiveTransform(
                features=4, hidden_features=8, tails="linear", tail_bound=3.0),
            "lu": lambda: transforms.LULinear(4),
        }  # fmt: skip
        steps = transforms.CompositeTransform([transforms.ReversePermutation(4), layers[kind]()])
        model = flows.Flow(steps, distributions.StandardNormal([4]))
        return Loss(lambda s, x: -s.model.log_prob(x).mean(), model=model)

    return make


def points(n: int) -> Batch:
    """Points of four numbers."""
    return (numbers(3 * n, 4),)


add("masked autoregressive flow", "nflows", flow("maf"), points)
add("rational quadratic flow", "nflows", flow("spline"), points)
add("LU flow", "nflows", flow("lu"), points)


def conv_tasnet() -> nn.Module:
    """A network that separates speakers."""
    from asteroid.models import ConvTasNet

    return Loss(model=ConvTasNet(n_src=2, n_repeats=1, n_blocks=2, bn_chan=8, hid_chan=8, skip_chan=8, n_filters=8,
                                 kernel_size=4, stride=2))  # fmt: skip


add("ConvTasNet", "asteroid", conv_tasnet, lambda n: (numbers(n, 16 * n),), "asteroid", "asteroid_filterbanks")


def segmentation(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A network of segmentation-models-pytorch."""

    def make() -> nn.Module:
        import segmentation_models_pytorch

        model = getattr(segmentation_models_pytorch, name)("resnet18", encoder_weights=None, classes=2, **settings)
        return Loss(model=model)

    return make


for _name in ("Unet", "FPN", "Linknet"):
    add(_name, "segmentation-models-pytorch", segmentation(_name), image(), "segmentation_models_pytorch")
