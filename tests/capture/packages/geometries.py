"""Curved spaces, frames of points, tables, signals and quantizers; and what draws as it goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.capture.packages.architectures import uneven
from tests.capture.packages.entry import Loss, add, ids, numbers, unevenly

__all__: list[str] = []


def hyperbolic(name: str) -> Callable[[], nn.Module]:
    """Distances between rows and points that are trained, in a space of geoopt."""

    def make() -> nn.Module:
        import geoopt

        def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
            at, points = (F.pad(y, (1, 0)) if name == "Lorentz" else y for y in (s.layer(x), s.points.weight))
            return s.space.dist(s.space.expmap0(at * 0.1)[:, None], s.space.expmap0(points * 0.1)[None])

        return Loss(forward, space=getattr(geoopt, name)(), layer=nn.Linear(4, 4), points=nn.Linear(4, 3, bias=False))

    return make


def frames() -> nn.Module:
    """Attention over points in frames that differ."""
    from invariant_point_attention import InvariantPointAttention

    model = InvariantPointAttention(
        dim=8, heads=2, scalar_key_dim=4, scalar_value_dim=4, point_key_dim=2, point_value_dim=2, pairwise_repr_dim=4
    )

    def forward(s: Any, x: torch.Tensor, pairs: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        turned = torch.linalg.qr(places[..., None] * places[..., None, :] + torch.eye(3, dtype=x.dtype))[0]
        return s.model(x, pairs, rotations=turned, translations=places)

    return Loss(forward, model=model)


def tabnet() -> nn.Module:
    """TabNet, with batch normalisation over parts of the batch."""
    from pytorch_tabnet.tab_network import TabNet

    groups = torch.eye(6, dtype=torch.float64)
    model = TabNet(
        input_dim=6, output_dim=2, n_d=4, n_a=4, n_steps=2, virtual_batch_size=4, group_attention_matrix=groups
    )
    return Loss(lambda s, x: unevenly(s.model(x)[0]), model=model)


def quantized(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A quantizer behind a layer."""

    def make() -> nn.Module:
        import vector_quantize_pytorch

        quantizer = getattr(vector_quantize_pytorch, name)(dim=6, **settings)
        return Loss(lambda s, x: unevenly(s.model(s.layer(x))[0]), model=quantizer, layer=nn.Linear(6, 6))

    return make


def resampled() -> nn.Module:
    """A signal at another rate, in bands."""
    import julius

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        return s.bands(s.rate(s.layer(x)))

    return Loss(forward, layer=nn.Conv1d(1, 2, 3), rate=julius.ResampleFrac(3, 2), bands=julius.SplitBands(8, 3))


class _Noise(nn.Module):
    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        self.drift, self.width = nn.Linear(3, 3), nn.Linear(3, 3)

    def f(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.drift(y))

    def g(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.width(y)) * 0.1


def noisy() -> nn.Module:
    """A stochastic differential equation, solved in forward."""

    def forward(s: Any, y: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        import torchsde

        return torchsde.sdeint(s.model, y, times, dt=0.25, method="euler")

    return Loss(forward, model=_Noise())


for _name in ("PoincareBall", "Lorentz"):
    add(f"{_name} of geoopt", "geoopt", hyperbolic(_name), lambda n: (numbers(n, 4),))
add("InvariantPointAttention", "invariant-point-attention", frames,
    lambda n: (numbers(n, 4 * n, 8), numbers(n, 4 * n, 4 * n, 4), numbers(n, 4 * n, 3)))  # fmt: skip
add("TabNet", "pytorch-tabnet", tabnet, lambda n: (numbers(4 * n, 6),))
add("SirenNet", "siren-pytorch", uneven("siren_pytorch.SirenNet", dim_in=2, dim_hidden=8, dim_out=3, num_layers=2),
    lambda n: (numbers(4 * n, 2),))  # fmt: skip
add("ResampleFrac", "julius", resampled,
    lambda n: (numbers(n, 1, 64 * n),))  # fmt: skip
add("XUnet", "x-unet", uneven("x_unet.XUnet", dim=8, channels=3, dim_mults=(1, 2), nested_unet_depths=(1, 1),
    consolidate_upsample_fmaps=True, num_blocks_per_stage=(1, 1), num_self_attn_per_stage=(0, 1)),
    lambda n: (numbers(n, 3, 16, 16),))  # fmt: skip
add("SimVQ", "vector-quantize-pytorch", quantized("SimVQ", codebook_size=8, rotation_trick=True),
    lambda n: (numbers(n, 8 * n, 6),))  # fmt: skip
add("ResidualFSQ", "vector-quantize-pytorch", quantized("ResidualFSQ", levels=[5, 5, 3], num_quantizers=2),
    lambda n: (numbers(n, 8 * n, 6),))  # fmt: skip
add("ResidualLFQ", "vector-quantize-pytorch", quantized("ResidualLFQ", codebook_size=16, num_quantizers=2),
    lambda n: (numbers(n, 8 * n, 6),))  # fmt: skip
add("MoE of st-moe", "st-moe-pytorch", uneven("st_moe_pytorch.MoE", dim=16, num_experts=4),
    lambda n: (numbers(n, 8 * n, 16),))  # fmt: skip
add("ReformerLM", "reformer-pytorch", uneven("reformer_pytorch.ReformerLM", num_tokens=20, dim=16, depth=1,
    max_seq_len=64, heads=2, bucket_size=4, n_hashes=2), lambda n: (ids(20, n, 16 * n),))  # fmt: skip
add("sdeint", "torchsde", noisy, lambda n: (numbers(n, 3), torch.linspace(0, 1, 3)))
