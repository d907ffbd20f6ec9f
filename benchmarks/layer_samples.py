"""Layers and functions of torch.nn, each with a batch on which eager takes some milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

__all__ = ["Layer", "layers"]


@dataclass(frozen=True)
class Layer:
    """A function of a batch, with the modules that it uses.

    Attributes:
        function: called with the batch's first tensor, the modules, and the other tensors.
        modules: whose parameters train.
        batch: its first tensor gets a gradient, too.
    """

    function: Callable[..., torch.Tensor]
    modules: tuple[nn.Module, ...]
    batch: tuple[torch.Tensor, ...]


def _module(module: nn.Module, *batch: torch.Tensor) -> Layer:
    return Layer(lambda x, module, *others: module(x, *others), (module,), batch)


def _sequence_module(module: nn.Module, *batch: torch.Tensor) -> Layer:
    return Layer(lambda x, module: module(x)[0], (module,), batch)


def _function(function: Callable[..., torch.Tensor], *batch: torch.Tensor) -> Layer:
    return Layer(function, (), batch)


def layers() -> dict[str, Layer]:
    """Return the samples by name; every call draws them anew."""
    images, rows = torch.randn(8, 32, 56, 56), torch.randn(16, 128, 256)
    signals, volumes = torch.randn(8, 64, 2000), torch.randn(2, 8, 16, 32, 32)
    classes = torch.randn(2048, 1000), torch.randint(0, 1000, (2048,))
    places = torch.randint(0, 128, (16, 128, 256))
    square = torch.randn(16, 64, 64)
    eye = 9 * torch.eye(64)
    samples = {
        "BatchNorm2d": _module(nn.BatchNorm2d(32), images),
        "GroupNorm": _module(nn.GroupNorm(8, 32), images),
        "InstanceNorm2d": _module(nn.InstanceNorm2d(32, affine=True), images),
        "LayerNorm": _module(nn.LayerNorm(256), rows),
        "RMSNorm": _module(nn.RMSNorm(256), rows),
        "LocalResponseNorm": _module(nn.LocalResponseNorm(5), images),
        "Conv1d": _module(nn.Conv1d(64, 64, 5, padding=2), signals),
        "Conv1d, depthwise": _module(nn.Conv1d(64, 64, 31, padding=15, groups=64), signals),
        "Conv2d": _module(nn.Conv2d(32, 32, 3, padding=1), images),
        "Conv2d, groups": _module(nn.Conv2d(32, 32, 3, padding=1, groups=4), images),
        "Conv2d, reflected borders": _module(nn.Conv2d(32, 32, 3, padding=1, padding_mode="reflect"), images),
        "Conv3d": _module(nn.Conv3d(8, 8, 3, padding=1), volumes),
        "ConvTranspose1d": _module(nn.ConvTranspose1d(64, 32, 8, stride=4, padding=2), torch.randn(8, 64, 500)),
        "ConvTranspose2d": _module(nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), images),
        "Linear": _module(nn.Linear(256, 256), rows),
        "MaxPool1d": _module(nn.MaxPool1d(2), signals),
        "MaxPool2d": _module(nn.MaxPool2d(3, 2, 1), images),
        "MaxPool3d": _module(nn.MaxPool3d(2), volumes),
        "AvgPool2d": _module(nn.AvgPool2d(2), images),
        "AdaptiveAvgPool2d, even": _module(nn.AdaptiveAvgPool2d(7), images),
        "AdaptiveAvgPool2d, uneven": _module(nn.AdaptiveAvgPool2d(5), images),
        "AdaptiveMaxPool2d": _module(nn.AdaptiveMaxPool2d(7), images),
        "Upsample, nearest": _module(nn.Upsample(scale_factor=2), images),
        "Upsample, bilinear": _module(nn.Upsample(scale_factor=2, mode="bilinear"), images),
        "Upsample, bicubic": _module(nn.Upsample(scale_factor=2, mode="bicubic"), images),
        "PixelShuffle": _module(nn.PixelShuffle(2), images),
        "Unfold": _module(nn.Unfold(3, padding=1), images),
        "Fold": _module(nn.Fold((56, 56), 3, padding=1), torch.randn(4, 144, 56 * 56)),
        "PReLU": _module(nn.PReLU(32), images),
        "GLU": _module(nn.GLU(1), images),
        "Bilinear": _module(nn.Bilinear(64, 64, 64), torch.randn(256, 64), torch.randn(256, 64)),
        "TransformerEncoderLayer": _module(nn.TransformerEncoderLayer(256, 8, 512, batch_first=True), rows),
        "LSTM": _sequence_module(nn.LSTM(256, 128, batch_first=True), rows),
        "GRU": _sequence_module(nn.GRU(256, 128, batch_first=True), rows),
        "RNN": _sequence_module(nn.RNN(256, 128, batch_first=True), rows),
        "Embedding": Layer(
            lambda x, module, ids: module(ids) * x, (nn.Embedding(5000, 128),),
            (torch.randn(64, 50, 128), torch.randint(0, 5000, (64, 50))),
        ),
        "EmbeddingBag": Layer(
            lambda x, module, ids: module(ids) * x, (nn.EmbeddingBag(5000, 128, mode="mean"),),
            (torch.randn(64, 128), torch.randint(0, 5000, (64, 50))),
        ),
        "dropout": _function(lambda x: functional.dropout(x, 0.1), rows),
        "dropout2d": _function(lambda x: functional.dropout2d(x, 0.1), images),
        "normalize": _function(lambda x: functional.normalize(x, dim=-1), rows),
        "softmax": _function(lambda x: 7 * functional.softmax(x, -1), rows),
        "cross_entropy": _function(functional.cross_entropy, *classes),
        "cross_entropy, smoothed": _function(
            lambda x, y: functional.cross_entropy(x, y, label_smoothing=0.1), *classes
        ),
        "cross_entropy of images": _function(functional.cross_entropy, images, torch.randint(0, 32, (8, 56, 56))),
        "binary_cross_entropy_with_logits": _function(
            functional.binary_cross_entropy_with_logits, images, torch.rand_like(images)
        ),
        "smooth_l1_loss": _function(functional.smooth_l1_loss, images, torch.randn_like(images)),
        "mse_loss": _function(functional.mse_loss, images, torch.randn_like(images)),
        "ctc_loss": _function(
            lambda x, y: functional.ctc_loss(x.log_softmax(-1), y, torch.full((16,), 100), torch.full((16,), 20)),
            torch.randn(100, 16, 50), torch.randint(1, 50, (16, 20)),
        ),
        "scaled_dot_product_attention": _function(
            lambda x: functional.scaled_dot_product_attention(x, x, x), torch.randn(8, 8, 128, 32)
        ),
        "grid_sample": _function(
            lambda x, grid: functional.grid_sample(x, grid, align_corners=False),
            images, 2 * torch.rand(8, 56, 56, 2) - 1,
        ),
        "cdist": _function(torch.cdist, torch.randn(8, 128, 64), torch.randn(8, 128, 64)),
        "cumsum": _function(lambda x: x.cumsum(1), rows),
        "cumprod": _function(lambda x: x.sigmoid().cumprod(1), rows),
        "logsumexp": _function(lambda x: x.logsumexp(1), rows),
        "logcumsumexp": _function(lambda x: x.logcumsumexp(1), rows[:, :64]),
        "std": _function(lambda x: x.std(-1), rows),
        "max": _function(lambda x: x.max(1)[0], rows),
        "topk": _function(lambda x: x.topk(8, -1)[0], rows),
        "sort": _function(lambda x: x.sort(-1)[0], rows),
        "gather": _function(lambda x, index: x.gather(1, index), rows, places),
        "scatter_add": _function(lambda x, index: torch.zeros_like(x).scatter_add(1, index, x), rows, places),
        "index_select": _function(lambda x, index: x.index_select(1, index), rows, places[0, :, 0]),
        "where": _function(lambda x: torch.where(x > 0, x, 0.1 * x), rows),
        "roll": _function(lambda x: x.roll((3, 3), (2, 3)), images),
        "cat": _function(lambda x: torch.cat([x, 2 * x], 1), images),
        "stft": _function(
            lambda x: torch.stft(x, 256, 64, window=torch.hann_window(256), return_complex=True).abs(),
            torch.randn(8, 16000),
        ),
        "linalg.solve": _function(lambda x: torch.linalg.solve(x + eye, x), square),
        "linalg.cholesky": _function(lambda x: torch.linalg.cholesky(x @ x.mT + eye), square),
    }  # fmt: skip
    activations = (
        "celu", "elu", "gelu", "hardsigmoid", "hardswish", "leaky_relu", "logsigmoid", "mish", "relu", "selu", "silu",
        "softplus", "softsign",
    )  # fmt: skip
    return samples | {name: _function(getattr(functional, name), images) for name in activations}
