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
        "ConvTranspose3d": _module(nn.ConvTranspose3d(8, 8, 2, stride=2), torch.randn(2, 8, 8, 16, 16)),
        "MaxPool1d": _module(nn.MaxPool1d(2), signals),
        "MaxPool2d": _module(nn.MaxPool2d(3, 2, 1), images),
        "MaxPool3d": _module(nn.MaxPool3d(2), volumes),
        "AvgPool1d": _module(nn.AvgPool1d(2), signals),
        "AvgPool2d": _module(nn.AvgPool2d(2), images),
        "AdaptiveAvgPool2d, even": _module(nn.AdaptiveAvgPool2d(7), images),
        "AdaptiveAvgPool2d, uneven": _module(nn.AdaptiveAvgPool2d(5), images),
        "AdaptiveMaxPool2d": _module(nn.AdaptiveMaxPool2d(7), images),
        "AvgPool3d": _module(nn.AvgPool3d(2), volumes),
        "LPPool2d": _module(nn.LPPool2d(2, 2), images),
        "Upsample, nearest": _module(nn.Upsample(scale_factor=2), images),
        "Upsample, bilinear": _module(nn.Upsample(scale_factor=2, mode="bilinear"), images),
        "Upsample, bicubic": _module(nn.Upsample(scale_factor=2, mode="bicubic"), images),
        "PixelShuffle": _module(nn.PixelShuffle(2), images),
        "PixelUnshuffle": _module(nn.PixelUnshuffle(2), images),
        "Unfold": _module(nn.Unfold(3, padding=1), images),
        "Fold": _module(nn.Fold((56, 56), 3, padding=1), torch.randn(4, 144, 56 * 56)),
        "PReLU": _module(nn.PReLU(32), images),
        "GLU": _module(nn.GLU(1), images),
        "Bilinear": _module(nn.Bilinear(64, 64, 64), torch.randn(256, 64), torch.randn(256, 64)),
        "TransformerEncoderLayer": _module(nn.TransformerEncoderLayer(256, 8, 512, batch_first=True), rows),
        "MultiheadAttention, masked": Layer(
            lambda x, module, mask, absent: module(x, x, x, absent, attn_mask=mask, need_weights=False)[0],
            (nn.MultiheadAttention(256, 8, batch_first=True),),
            (rows, torch.triu(torch.full((128, 128), -torch.inf), 1), torch.arange(128).expand(16, 128) > 120),
        ),
        "MultiheadAttention with weights": Layer(
            lambda x, module: module(x, x, x)[0], (nn.MultiheadAttention(256, 8, batch_first=True),), (rows,),
        ),
        "TransformerDecoderLayer": Layer(
            lambda x, module: module(x, x), (nn.TransformerDecoderLayer(256, 8, 512, batch_first=True),), (rows,),
        ),
        "LSTM": _sequence_module(nn.LSTM(256, 128, batch_first=True), rows),
        "GRU": _sequence_module(nn.GRU(256, 128, batch_first=True), rows),
        "RNN": _sequence_module(nn.RNN(256, 128, batch_first=True), rows),
        "Embedding": Layer(
            lambda x, module, ids: module(ids) * x, (nn.Embedding(5000, 128),),
            (torch.randn(64, 50, 128), torch.randint(0, 5000, (64, 50))),
        ),
        "dropout between convolutions": Layer(
            lambda x, first, second: second(functional.dropout(first(x), 0.1)),
            (nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)), (images,),
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
        "cross_entropy, weighted": _function(
            lambda x, y, weight: functional.cross_entropy(x, y, weight), *classes, torch.rand(1000)
        ),
        "cross_entropy of probabilities": _function(functional.cross_entropy, classes[0], classes[0].softmax(1)),
        "nll_loss": _function(lambda x, y: functional.nll_loss(x.log_softmax(1), y), *classes),
        "kl_div": _function(
            lambda x, y: functional.kl_div(x.log_softmax(1), y, reduction="batchmean"), classes[0],
            classes[0].softmax(1),
        ),
        "binary_cross_entropy": _function(
            lambda x, y: functional.binary_cross_entropy(x.sigmoid(), y), images, torch.rand_like(images)
        ),
        "triplet_margin_loss": _function(
            functional.triplet_margin_loss, rows, torch.randn_like(rows), torch.randn_like(rows)
        ),
        "cosine_embedding_loss": _function(
            lambda x, y, z: functional.cosine_embedding_loss(x, y, z), classes[0], torch.randn(2048, 1000),
            2 * torch.randint(0, 2, (2048,)) - 1,
        ),
        "cosine_similarity": _function(
            lambda x, y: functional.cosine_similarity(x, y, -1), rows, torch.randn_like(rows)
        ),
        "gaussian_nll_loss": _function(functional.gaussian_nll_loss, images, images, torch.rand_like(images) + 0.1),
        "poisson_nll_loss": _function(functional.poisson_nll_loss, images, torch.rand_like(images)),
        "l1_loss": _function(functional.l1_loss, images, torch.randn_like(images)),
        "hinge_embedding_loss": _function(
            functional.hinge_embedding_loss, images, 2 * torch.randint(0, 2, images.shape) - 1
        ),
        "multi_margin_loss": _function(functional.multi_margin_loss, *classes),
        "multilabel_soft_margin_loss": _function(
            functional.multilabel_soft_margin_loss, classes[0], torch.rand(2048, 1000)
        ),
        "pairwise_distance": _function(functional.pairwise_distance, rows, torch.randn_like(rows)),
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
        "cummax": _function(lambda x: x.cummax(1)[0], rows[:, :64]),
        "cumprod": _function(lambda x: x.sigmoid().cumprod(1), rows),
        "logsumexp": _function(lambda x: x.logsumexp(1), rows),
        "logcumsumexp": _function(lambda x: x.logcumsumexp(1), rows[:, :64]),
        "std": _function(lambda x: x.std(-1), rows),
        "max": _function(lambda x: x.max(1)[0], rows),
        "topk": _function(lambda x: x.topk(8, -1)[0], rows),
        "sort": _function(lambda x: x.sort(-1)[0], rows),
        "median": _function(lambda x: x.median(-1)[0], rows),
        "kthvalue": _function(lambda x: x.kthvalue(5, -1)[0], rows),
        "amax": _function(lambda x: x.amax(1), rows),
        "var": _function(lambda x: x.var(1), rows),
        "prod": _function(lambda x: (1 + x / 100).prod(-1), rows),
        "norm": _function(lambda x: x.norm(dim=1), rows),
        "softmax of channels": _function(lambda x: 7 * functional.softmax(x, 1), images),
        "gumbel_softmax": _function(functional.gumbel_softmax, rows),
        "einsum": _function(lambda x, y: torch.einsum("bld,bmd->blm", x, y), rows, torch.randn_like(rows)),
        "bmm": _function(lambda x, y: torch.bmm(x, y.mT), rows, torch.randn_like(rows)),
        "index": _function(lambda x, index: x[:, index], rows, places[0, :, 0]),
        "index_put": _function(
            lambda x, index: x.index_put((index,), x[0], accumulate=True), rows, torch.zeros(1, dtype=torch.long)
        ),
        "masked_fill": _function(lambda x, mask: x.masked_fill(mask, -1.0), rows, rows > 0),
        "gather": _function(lambda x, index: x.gather(1, index), rows, places),
        "scatter_add": _function(lambda x, index: torch.zeros_like(x).scatter_add(1, index, x), rows, places),
        "index_select": _function(lambda x, index: x.index_select(1, index), rows, places[0, :, 0]),
        "index_add": _function(
            lambda x, index: torch.zeros_like(x).index_add(1, index, x), rows, places[0, :, 0]
        ),
        "scatter_reduce": _function(
            lambda x, index: torch.zeros_like(x).scatter_reduce(1, index, x, "mean"), rows, places
        ),
        "where": _function(lambda x: torch.where(x > 0, x, 0.1 * x), rows),
        "roll": _function(lambda x: x.roll((3, 3), (2, 3)), images),
        "cat": _function(lambda x: torch.cat([x, 2 * x], 1), images),
        "stack": _function(lambda x: torch.stack([x, 2 * x], 1), rows),
        "pad, reflected": _function(lambda x: functional.pad(x, (2, 2, 2, 2), "reflect"), images),
        "flip": _function(lambda x: x.flip(2), images),
        "tril": _function(lambda x: x.tril(), rows),
        "repeat": _function(lambda x: x.repeat(1, 2, 1), rows),
        "repeat_interleave": _function(lambda x: x.repeat_interleave(2, 1), rows),
        "affine_grid": _function(
            lambda x: functional.affine_grid(x, [64, 3, 64, 64], align_corners=False), torch.randn(64, 2, 3)
        ),
        "rfft": _function(lambda x: torch.fft.rfft(x).abs(), rows),
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


class Step(nn.Module):
    """A layer behind a product with the batch, and before a mean of squares."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.function, self.layers = layer.function, nn.ModuleList(layer.modules)
        self.gain = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return self.function(x * self.gain, *self.layers, *others).square().mean()
