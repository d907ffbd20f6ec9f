"""Flows of zuko and normflows, cells of ncps, networks of pykan, and filters of pytorch-wavelets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, image, numbers

__all__: list[str] = []


def conditional(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A conditional flow of zuko under its likelihood."""

    def make() -> nn.Module:
        import zuko

        return Loss(lambda s, x, c: -s.model(c).log_prob(x).mean(), model=getattr(zuko.flows, name)(3, 2, **settings))

    return make


def points(n: int) -> Batch:
    """Points of three numbers, each with a context of two."""
    return numbers(4 * n, 3), numbers(4 * n, 2, seed=2)


_SMALL: dict[str, Any] = {"hidden_features": (8,)}
for _name, _settings in (
    ("MAF", {"transforms": 2}), ("NSF", {"transforms": 1, "bins": 4}), ("NICE", {"transforms": 2}),
    ("BPF", {"transforms": 1, "degree": 4}), ("SOSPF", {"transforms": 1, "degree": 2, "polynomials": 2}),
    ("NCSF", {"transforms": 1, "bins": 4}), ("GF", {"transforms": 2, "components": 3}),
    ("NAF", {"transforms": 1, "signal": 3}), ("UNAF", {"transforms": 1, "signal": 3}), ("CNF", {"freqs": 2}),
):  # fmt: skip
    add(f"{_name} of zuko", "zuko", conditional(_name, **_settings, **_SMALL), points)


def flow(kind: str) -> Callable[[], nn.Module]:
    """A flow of normflows under the forward divergence."""

    def make() -> nn.Module:
        from normflows import NormalizingFlow, distributions, flows, nets

        layers = {
            "affine": lambda: [flows.AffineCouplingBlock(nets.MLP([2, 8, 4])), flows.Permute(4, mode="swap")],
            "spline": lambda: [flows.AutoregressiveRationalQuadraticSpline(4, 1, 8), flows.LULinearPermute(4)],
        }  # fmt: skip
        model = NormalizingFlow(distributions.DiagGaussian(4), layers[kind]())
        return Loss(lambda s, x: s.model.forward_kld(x), model=model)

    return make


add("RealNVP of normflows", "normflows", flow("affine"), lambda n: (numbers(4 * n, 4),))
add("spline flow of normflows", "normflows", flow("spline"), lambda n: (numbers(4 * n, 4),))


def begun_from_data() -> nn.Module:
    """Couplings between layers that begin from the first batch."""
    from normflows import NormalizingFlow, distributions, flows, nets

    coupled = [
        layer
        for _ in range(2)
        for layer in (flows.AffineCouplingBlock(nets.MLP([2, 8, 4])), flows.Permute(4, mode="swap"), flows.ActNorm(4))
    ]
    return Loss(lambda s, x: s.model.forward_kld(x), model=NormalizingFlow(distributions.DiagGaussian(4), coupled))


def glow() -> nn.Module:
    """Glow on two scales."""
    from normflows import MultiscaleFlow, distributions, flows

    scales = [[flows.GlowBlock(channels, 8, split_mode="channel"), flows.Squeeze()] for channels in (24, 12)]
    bases = [distributions.DiagGaussian((24, 2, 2)), distributions.DiagGaussian((6, 4, 4))]
    model = MultiscaleFlow(bases, scales, [flows.Merge()])
    return Loss(lambda s, x: -s.model.log_prob(x, None).mean(), model=model)


add("ActNorm of normflows", "normflows", begun_from_data, lambda n: (numbers(4 * n, 4),))
add("Glow of normflows", "normflows", glow, lambda n: (numbers(4 * n, 3, 8, 8),))


def liquid(name: str) -> Callable[[], nn.Module]:
    """A recurrent network of ncps, wired as a neural circuit."""

    def make() -> nn.Module:
        import ncps.torch
        from ncps.wirings import AutoNCP

        return Loss(model=getattr(ncps.torch, name)(4, AutoNCP(8, 2)))

    return make


add("LTC", "ncps", liquid("LTC"), lambda n: (numbers(n, 2 * n, 4),))
add("CfC", "ncps", liquid("CfC"), lambda n: (numbers(n, 2 * n, 4),))


def kan() -> nn.Module:
    """A Kolmogorov–Arnold network."""
    from kan import KAN

    return Loss(model=KAN(width=[3, 4, 1], grid=3, k=3, seed=0, auto_save=False))


add("KAN of pykan", "pykan", kan, lambda n: (numbers(4 * n, 3),), "kan")


def wavelets() -> nn.Module:
    """A wavelet transform and back, with a threshold between."""
    from pytorch_wavelets import DWTForward, DWTInverse

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        low, high = s.ahead(s.layer(x))
        return s.back((low, [y.relu() for y in high]))

    return Loss(forward, layer=nn.Conv2d(3, 3, 3, padding=1), ahead=DWTForward(J=2, wave="db2", mode="symmetric"),
                back=DWTInverse(wave="db2", mode="symmetric"))  # fmt: skip


def scattering() -> nn.Module:
    """A scattering layer behind a convolution."""
    from pytorch_wavelets import ScatLayer

    return Loss(lambda s, x: s.scatter(s.layer(x)), layer=nn.Conv2d(3, 3, 3, padding=1), scatter=ScatLayer())


add("wavelet transform", "pytorch-wavelets", wavelets, image(size=16))
add("scattering", "pytorch-wavelets", scattering, image(size=16))
