"""Losses and metrics: sentence-transformers, pytorch-metric-learning, torchmetrics, kornia."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, image, numbers

__all__: list[str] = []


def embeddings(n: int) -> Batch:
    """Rows with a class each, several of a class."""
    return numbers(4 * n, 6), torch.arange(4 * n) % 3


def metric_loss(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A loss of pytorch-metric-learning over embeddings that a layer makes."""

    def make() -> nn.Module:
        from pytorch_metric_learning import losses

        return Loss(
            lambda s, x, y: s.loss(s.layer(x), y), layer=nn.Linear(6, 5), loss=getattr(losses, name)(**settings)
        )

    return make


for _name, _settings in (
    ("NTXentLoss", {}), ("SupConLoss", {}), ("TripletMarginLoss", {}), ("MultiSimilarityLoss", {}),
    ("ArcFaceLoss", {"num_classes": 3, "embedding_size": 5}), ("ContrastiveLoss", {}), ("CircleLoss", {}),
    ("ProxyAnchorLoss", {"num_classes": 3, "embedding_size": 5}), ("AngularLoss", {}), ("LiftedStructureLoss", {}),
    ("TupletMarginLoss", {}), ("FastAPLoss", {}), ("NCALoss", {}), ("MarginLoss", {}),
    ("SoftTripleLoss", {"num_classes": 3, "embedding_size": 5}),
    ("SphereFaceLoss", {"num_classes": 3, "embedding_size": 5}),
):  # fmt: skip
    add(_name, "pytorch-metric-learning", metric_loss(_name, **_settings), embeddings)


class Encoder(nn.Module):
    """What a loss of sentence-transformers asks for embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sentence_embedding": self.layer(features["x"])}


def sentence_loss(name: str) -> Callable[[], nn.Module]:
    """A loss of sentence-transformers over pairs of sentences."""

    def make() -> nn.Module:
        from sentence_transformers import losses

        loss = getattr(losses, name)(Encoder())
        return Loss(lambda s, a, b, y: s.loss([{"x": a}, {"x": b}], y), loss=loss)

    return make


def pairs(n: int) -> Batch:
    """Pairs of rows, every other one a match."""
    return numbers(4 * n, 6), numbers(4 * n, 6, seed=1), torch.arange(4 * n) % 2


add("OnlineContrastiveLoss", "sentence-transformers", sentence_loss("OnlineContrastiveLoss"), pairs)
add("ContrastiveLoss of sentences", "sentence-transformers", sentence_loss("ContrastiveLoss"), pairs)
add("MultipleNegativesRankingLoss", "sentence-transformers", sentence_loss("MultipleNegativesRankingLoss"), pairs)


def metric() -> nn.Module:
    """A metric that forward keeps up to date beside the loss."""
    from torchmetrics.functional import mean_squared_error, pearson_corrcoef

    def forward(s: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        score = s.layer(x)[:, 0]
        return mean_squared_error(score, y.double()) - pearson_corrcoef(score, y.double())

    return Loss(forward, layer=nn.Linear(6, 1))


def metric_module() -> nn.Module:
    """A metric of its class in forward."""
    from torchmetrics.regression import MeanSquaredError

    def forward(s: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return s.metric(s.layer(x)[:, 0], y.double())

    return Loss(forward, layer=nn.Linear(6, 1), metric=MeanSquaredError())


add("functional metrics", "torchmetrics", metric, embeddings)
add("MeanSquaredError", "torchmetrics", metric_module, embeddings)


def kornia_loss(name: str, *arguments: Any) -> Callable[[], nn.Module]:
    """A loss of kornia between an image and what a convolution makes of it."""

    def make() -> nn.Module:
        from kornia import losses

        loss = getattr(losses, name)(*arguments)
        return Loss(lambda s, x: s.loss(s.layer(x), x), layer=nn.Conv2d(3, 3, 3, padding=1), loss=loss)

    return make


def kornia_filter(name: str, *arguments: Any) -> Callable[[], nn.Module]:
    """A filter of kornia behind a convolution."""

    def make() -> nn.Module:
        from kornia import filters

        return Loss(lambda s, x: s.filter(s.layer(x)), layer=nn.Conv2d(3, 3, 3, padding=1),
                    filter=getattr(filters, name)(*arguments))  # fmt: skip

    return make


add("SSIMLoss", "kornia", kornia_loss("SSIMLoss", 5), image(size=16))
add("CharbonnierLoss", "kornia", kornia_loss("CharbonnierLoss"), image(size=16))
add("GaussianBlur2d", "kornia", kornia_filter("GaussianBlur2d", (3, 3), (1.5, 1.5)), image(size=16))
add("Sobel", "kornia", kornia_filter("Sobel"), image(size=16))
