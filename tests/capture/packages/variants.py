"""Further models: vision transformers, language models with attention of other kinds, recommenders, equivariance."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, ids, image, numbers

__all__: list[str] = []


def named(path: str, function: Callable[..., Any] | None = None, **settings: Any) -> Callable[[], nn.Module]:
    """A class by its path, under a loss."""

    def make() -> nn.Module:
        module, _, name = path.rpartition(".")
        return Loss(function, model=getattr(import_module(module), name)(**settings))

    return make


_VIT: dict[str, Any] = {
    "image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 16, "depth": 1, "heads": 2, "mlp_dim": 24,
}  # fmt: skip
for _label, _path, _settings in (
    ("DeepViT", "deepvit.DeepViT", _VIT),
    ("CaiT", "cait.CaiT", {**_VIT, "cls_depth": 1}),
    ("ViT of attention residuals", "attn_residual_with_dca_simple_vit.SimpleViT", _VIT),
    ("RvT", "rvt.RvT", _VIT),
    ("ViT with memory", "learnable_memory_vit.ViT", _VIT),
    ("normalised ViT", "normalized_vit.nViT", {**_VIT, "dim_head": 8}),
    ("ViT for small datasets", "vit_for_small_dataset.ViT", _VIT),
    ("ViT with Fourier patches", "simple_vit_with_fft.SimpleViT", {**_VIT, "freq_patch_size": 8}),
    ("ViT with patch merger", "vit_with_patch_merger.ViT",
     {**_VIT, "depth": 2, "patch_merge_layer": 0, "patch_merge_num_tokens": 4}),
    ("U-shaped ViT", "simple_uvit.SimpleUViT", {**_VIT, "depth": 2}),
    ("LeViT of vit-pytorch", "levit.LeViT", {"image_size": 32, "num_classes": 5, "dim": (16, 16, 16), "depth": 1,
     "heads": (2, 2, 2), "mlp_mult": 2}),
):  # fmt: skip
    add(_label, "vit-pytorch", named(f"vit_pytorch.{_path}", **_settings), image())


def attending(**settings: Any) -> Callable[[], nn.Module]:
    """A language model of x-transformers with attention of some kind."""

    def make() -> nn.Module:
        from x_transformers import Decoder, TransformerWrapper

        layers = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, **settings)
        return Loss(model=TransformerWrapper(num_tokens=12, max_seq_len=16, attn_layers=layers))

    return make


def texts(n: int) -> Batch:
    """Words by their numbers."""
    return (ids(12, n, 4 + n),)


for _label, _settings in {
    "selective attention": {"attn_selective": True},
    "LASER attention": {"attn_laser": True},
    "attention of sigmoids": {"attn_sigmoid": True},
    "sparse attention": {"attn_sparse_topk": 2},
    "attention on attention": {"attn_on_attn": True},
    "polar positions": {"polar_pos_emb": True},
    "dynamic tanh": {"use_dynamic_tanh": True},
    "shared keys": {"attn_kv_heads": 1},
}.items():
    add(f"{_label} of x-transformers", "x-transformers", attending(**_settings), texts)

add("TransformerEncoder of recbole", "recbole", named("recbole.model.layers.TransformerEncoder",
    lambda s, x: s.model(x, torch.zeros(len(x), 1, 5, 5).to(x))[-1], n_layers=1, n_heads=2, hidden_size=8,
    inner_size=12, hidden_dropout_prob=0.0, attn_dropout_prob=0.0), lambda n: (numbers(n, 5, 8),), "recbole",
    "texttable")  # fmt: skip
add("AttLayer of recbole", "recbole", named("recbole.model.layers.AttLayer", in_dim=8, att_dim=4),
    lambda n: (numbers(n, 5, 8),), "recbole", "texttable")  # fmt: skip
add("multilayer perceptron of deepchem", "deepchem",
    named("deepchem.models.torch_models.layers.MultilayerPerceptron", d_input=6, d_hidden=(8,), d_output=2),
    lambda n: (numbers(n, 6),), "deepchem", "rdkit")  # fmt: skip


def gated() -> nn.Module:
    """A linear map of e3nn, and a gate."""
    from e3nn import nn as equivariant, o3

    gate = equivariant.Gate("4x0e", [torch.tanh], "3x0e", [torch.sigmoid], "2x1o + 1x2e")
    return Loss(lambda s, x: s.gate(s.linear(x)), gate=gate, linear=o3.Linear("4x0e + 2x1o + 1x2e", gate.irreps_in))


add("gate of e3nn", "e3nn", gated, lambda n: (numbers(n, 15),))
