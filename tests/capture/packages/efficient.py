"""Attention in less than quadratic time, invertible networks, transport of samples, and layers of private training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, ids, numbers
from tests.capture.packages.extras import applied, imported

__all__: list[str] = []

_SMALL: dict[str, Any] = {"num_tokens": 20, "dim": 16, "depth": 1}


def text(n: int) -> Batch:
    """Texts of sixteen words."""
    return (ids(20, n, 16),)


def rows(*shape: int) -> Callable[[int], Batch]:
    """Batches of normal numbers."""
    return lambda n: (numbers(n, *shape),)


def scored(path: str, **settings: Any) -> Callable[[], nn.Module]:
    """A language model that returns its own loss."""
    return lambda: Loss(lambda s, x: s.model(x, return_loss=True), model=imported(path)(**settings))


add("Mega", "Mega-pytorch", applied("mega_pytorch.Mega", **_SMALL, ema_heads=4, attn_dim_qk=8, attn_dim_value=16,
    laplacian_attn_fn=True), text, "mega_pytorch")  # fmt: skip
add("GateLoop", "gateloop-transformer", scored("gateloop_transformer.Transformer", **_SMALL,
    use_gate_looped_attn=True), text)  # fmt: skip
add("local attention", "local-attention", scored("local_attention.LocalTransformer", **_SMALL, max_seq_len=32,
    causal=True, local_attn_window_size=4, heads=2, dim_head=8), text)  # fmt: skip
add("Sinkhorn transformer", "sinkhorn-transformer", applied("sinkhorn_transformer.SinkhornTransformerLM", **_SMALL,
    heads=2, bucket_size=4, max_seq_len=16, sinkhorn_iter=2), text)  # fmt: skip
add("compressive transformer", "compressive-transformer-pytorch", applied(
    "compressive_transformer_pytorch.CompressiveTransformer", **_SMALL, heads=2, seq_len=16, mem_len=16, cmem_len=8,
    cmem_ratio=2, memory_layers=[1]), text)  # fmt: skip
add("recurrent memory", "recurrent-memory-transformer-pytorch", applied(
    "recurrent_memory_transformer_pytorch.RecurrentMemoryTransformer", **_SMALL, num_memory_tokens=2, seq_len=16,
    dim_head=8, heads=2, causal=True), text)  # fmt: skip
add("H-Transformer-1D", "h-transformer-1d", applied("h_transformer_1d.HTransformer1D", **_SMALL, heads=2, dim_head=8,
    max_seq_len=16, block_size=4, causal=False), text)  # fmt: skip
add("Nystromformer of nystrom-attention", "nystrom-attention", applied("nystrom_attention.Nystromformer", dim=16,
    dim_head=8, heads=2, depth=1, num_landmarks=4), rows(16, 16))  # fmt: skip
add("axial attention", "axial-attention", applied("axial_attention.AxialAttention", dim=8, dim_index=1, heads=2,
    num_dimensions=2), rows(8, 6, 5))  # fmt: skip
add("attention by Taylor series", "taylor-series-linear-attention", applied(
    "taylor_series_linear_attention.TaylorSeriesLinearAttn", dim=16, dim_head=4, heads=2), rows(9, 16))  # fmt: skip
add("point transformer", "point-transformer-pytorch", lambda: Loss(model=imported(
    "point_transformer_pytorch.PointTransformerLayer")(dim=16, pos_mlp_hidden_dim=8, attn_mlp_hidden_mult=2,
    num_neighbors=4)), lambda n: (numbers(n, 8, 16), numbers(n, 8, 3)))  # fmt: skip


def invertible(name: str) -> Callable[[], nn.Module]:
    """The likelihood of two of FrEIA's blocks."""

    def make() -> nn.Module:
        model = imported("FrEIA.framework.SequenceINN")(4)
        for _ in range(2):
            model.append(imported(f"FrEIA.modules.{name}"), subnet_constructor=perceptron)
        return Loss(likelihood, model=model)

    return make


def perceptron(inputs: int, outputs: int) -> nn.Module:
    """What a block computes its scales and shifts by."""
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))


def likelihood(s: Any, x: torch.Tensor) -> torch.Tensor:
    """The negative logarithm of a normal density of what the model makes of x, and of its determinant."""
    z, log = s.model(x)
    loss: torch.Tensor = (z.square().sum(1) / 2 - log).mean()
    return loss


for _name in ("AllInOneBlock", "RNVPCouplingBlock", "GLOWCouplingBlock", "NICECouplingBlock", "GINCouplingBlock"):
    add(f"{_name} of FrEIA", "FrEIA", invertible(_name), rows(4), "FrEIA")


def between_samples(name: str) -> Callable[[], nn.Module]:
    """A distance of geomloss between what a layer makes of samples and other samples."""

    def make() -> nn.Module:
        loss = imported("geomloss.SamplesLoss")(name, blur=0.5, backend="tensorized")
        return Loss(lambda s, x, y: s.loss(s.layer(x), y), layer=nn.Linear(3, 3), loss=loss)

    return make


for _name in ("energy", "gaussian", "laplacian"):
    add(f"{_name} distance of geomloss", "geomloss", between_samples(_name),
        lambda n: (numbers(n, 5, 3), numbers(n, 6, 3, seed=2)))  # fmt: skip

for _name in ("DPLSTM", "DPGRU", "DPRNN"):
    add(f"{_name} of opacus", "opacus", applied(
        f"opacus.layers.{_name}", input_size=4, hidden_size=5, batch_first=True), rows(4, 4))  # fmt: skip


def private_attention() -> nn.Module:
    """Attention of opacus, whose gradients it takes for each row."""
    attention = imported("opacus.layers.DPMultiheadAttention")(8, 2)
    return Loss(lambda s, x: s.attention(x, x, x), attention=attention)


add("DPMultiheadAttention of opacus", "opacus", private_attention, lambda n: (numbers(4, n, 8),))
