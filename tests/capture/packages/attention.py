"""Networks of attention from packages of one author, and of click-through rates from deepctr-torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, ids, image, numbers

__all__: list[str] = []


def network(path: str, **settings: Any) -> Callable[[], nn.Module]:
    """A network by the path of its class."""

    def make() -> nn.Module:
        module, _, name = path.rpartition(".")
        return Loss(model=getattr(importlib.import_module(module), name)(**settings))

    return make


_VIT: dict[str, Any] = {
    "image_size": 16, "patch_size": 4, "num_classes": 5, "dim": 16, "depth": 2, "heads": 2, "mlp_dim": 24,
}  # fmt: skip
_CVT = {f"s{i}_{name}": size for i in (1, 2, 3) for name, size in (("emb_dim", 8), ("heads", 1), ("depth", 1))}
for _name, _path, _settings, _size in (
    ("ViT", "vit.ViT", _VIT, 16), ("SimpleViT", "simple_vit.SimpleViT", _VIT, 16),
    ("CvT", "cvt.CvT", {"num_classes": 5, **_CVT}, 32),
    ("MaxViT", "max_vit.MaxViT", {"num_classes": 5, "dim": 8, "depth": (1, 1), "dim_conv_stem": 8, "dim_head": 4,
                                  "window_size": 4}, 32),
    ("NesT", "nest.NesT", {"image_size": 16, "patch_size": 2, "dim": 8, "heads": 2, "num_hierarchies": 2,
                           "block_repeats": (1, 1), "num_classes": 5}, 16),
    ("parallel ViT", "parallel_vit.ViT", _VIT, 16),
    ("ViT with hyper-connections", "simple_vit_with_hyper_connections.SimpleViT",
     {**_VIT, "num_residual_streams": 2}, 16),
):  # fmt: skip
    add(f"{_name} of vit-pytorch", "vit-pytorch", network(f"vit_pytorch.{_path}", **_settings), image(size=_size),
        "vit_pytorch")  # fmt: skip


def words(n: int) -> Batch:
    """Sentences of 4n words."""
    return (ids(20, n, 4 * n),)


add("Perceiver of perceiver-pytorch", "perceiver-pytorch", network(
    "perceiver_pytorch.Perceiver", input_channels=3, input_axis=2, num_freq_bands=2, max_freq=4.0, depth=2,
    num_latents=4, latent_dim=8, cross_heads=1, latent_heads=2, cross_dim_head=4, latent_dim_head=4, num_classes=5),
    lambda n: (numbers(n, 4 * n, 4 * n, 3),), "perceiver_pytorch")  # fmt: skip
add("Linformer", "linformer", network(
    "linformer.LinformerLM", num_tokens=20, dim=16, seq_len=12, depth=2, heads=2, k=4, one_kv_head=True,
    share_kv=True), lambda n: (ids(20, n, 12),))  # fmt: skip
for _name, _settings in (("Performer", {}), ("Performer, reversible", {"depth": 2, "reversible": True})):
    add(_name, "performer-pytorch", network("performer_pytorch.PerformerLM", **{
        "num_tokens": 20, "max_seq_len": 16, "dim": 16, "depth": 1, "heads": 2, "dim_head": 8, "nb_features": 8,
        "feature_redraw_interval": None, **_settings}), words, "performer_pytorch")  # fmt: skip
add("TokenShiftGPT", "token-shift-gpt", network(
    "token_shift_gpt.TokenShiftGPT", num_tokens=20, dim=16, max_seq_len=16, depth=2), words)  # fmt: skip
add("Conformer of conformer", "conformer", network(
    "conformer.Conformer", dim=16, depth=2, dim_head=8, heads=2, ff_mult=2, conv_expansion_factor=2,
    conv_kernel_size=3), lambda n: (numbers(n, 4 * n, 16),))  # fmt: skip


def click_through(name: str) -> Callable[[], nn.Module]:
    """A model of deepctr-torch over two classes, a list of classes and a number."""

    def make() -> nn.Module:
        from deepctr_torch import models
        from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat

        listed = VarLenSparseFeat(SparseFeat("c", 6, embedding_dim=4), maxlen=3, combiner="mean")
        columns = [SparseFeat("a", 5, embedding_dim=4), SparseFeat("b", 4, embedding_dim=4), listed, DenseFeat("d", 2)]

        def forward(s: Any, classes: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            return s.model(torch.cat([classes.to(dense.dtype), dense], 1))

        return Loss(forward, model=getattr(models, name)(columns, columns, dnn_hidden_units=(8,)))

    return make


for _name in ("DeepFM", "xDeepFM", "AutoInt", "DCN", "WDL", "NFM", "IFM", "FiBiNET", "DCNMix"):
    add(_name, "deepctr-torch", click_through(_name), lambda n: (ids(4, 3 * n, 5), numbers(3 * n, 2)))
