"""Losses as modules: of batches that may be empty or a single row, without batches, and of soft targets."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.drawn.calls.call import Call, call
from tests.drawn.draw import Draw

CLASSES = 4


def _reduction(draw: Draw) -> str:
    return draw.choice(["mean", "sum", "none"])


def _rows(draw: Draw, empty: bool) -> int:
    return draw.choice([0, 1, 3]) if empty else draw.integer(1, 5)


@call.share(2)
def labelled(draw: Draw) -> Call:
    """CrossEntropyLoss and NLLLoss over any axes, of rows that are all ignored, empty or without a batch."""
    rank, empty, alone = draw.integer(0, 3), draw.flag(0.3), draw.flag(0.2)
    settings: dict = dict(reduction=_reduction(draw), ignore_index=draw.choice([-100, 1, -1]))
    settings["weight"] = draw.maybe(draw.uniform(CLASSES))
    likelihoods = draw.flag()
    if not likelihoods:
        settings["label_smoothing"] = draw.choice([0.0, 0.2])
    loss = (nn.NLLLoss if likelihoods else nn.CrossEntropyLoss)(**settings)
    all_ignored = draw.flag(0.1)

    def function(m: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        axis = 0 if alone else 1
        value = m(x.log_softmax(axis) if likelihoods else x, y)
        return value.nan_to_num(7.0) if settings["reduction"] == "mean" else value

    def inputs() -> list[torch.Tensor]:
        batch = () if alone else (_rows(draw, empty),)
        sizes = () if alone else draw.sizes(rank, 1, 3)
        labels = draw.labels(CLASSES, *batch, *sizes)
        if all_ignored:
            labels = torch.full_like(labels, settings["ignore_index"])
        return [draw.tensor(*batch, CLASSES, *sizes), labels]

    return Call(
        f"{type(loss).__name__} {settings} rank={rank} alone={alone} ignored={all_ignored}", function, inputs, loss
    )


@call
def soft_targets(draw: Draw) -> Call:
    """CrossEntropyLoss of probabilities that get a gradient, too."""
    rank = draw.integer(0, 2)
    settings = dict(reduction=_reduction(draw), label_smoothing=draw.choice([0.0, 0.2]),
                    weight=draw.maybe(draw.uniform(CLASSES)))  # fmt: skip
    loss = nn.CrossEntropyLoss(**settings)

    def inputs() -> torch.Tensor:
        return draw.tensor(_rows(draw, False), CLASSES, *draw.sizes(rank, 1, 3))

    return Call(f"CrossEntropyLoss {settings} {rank}", lambda m, x: m(x, (x * 0.5).softmax(1)), inputs, loss)


def _of_pairs(draw: Draw) -> dict:
    reduction = dict(reduction=_reduction(draw))
    margin = draw.choice([0.3, 1.0])
    return {
        "L1": (nn.L1Loss(**reduction), lambda y: y),
        "MSE": (nn.MSELoss(**reduction), lambda y: y),
        "SmoothL1": (nn.SmoothL1Loss(beta=draw.choice([0.0, 0.5]), **reduction), lambda y: y),
        "Huber": (nn.HuberLoss(delta=margin, **reduction), lambda y: y),
        "SoftMargin": (nn.SoftMarginLoss(**reduction), lambda y: y.sign()),
        "HingeEmbedding": (nn.HingeEmbeddingLoss(margin=margin, **reduction), lambda y: y.sign()),
        "MultiLabelSoftMargin": (
            nn.MultiLabelSoftMarginLoss(weight=draw.maybe(draw.uniform(CLASSES)), **reduction), lambda y: (y > 0) * 1.0
        ),
        "BCEWithLogits": (
            nn.BCEWithLogitsLoss(pos_weight=draw.maybe(draw.uniform(CLASSES)), **reduction), lambda y: y.sigmoid()
        ),
        "Poisson": (nn.PoissonNLLLoss(full=draw.flag(), **reduction), lambda y: y.abs() * 3),
        "KLDiv": (nn.KLDivLoss(reduction=draw.choice(["batchmean", "sum", "none"])), lambda y: y.softmax(-1)),
    }  # fmt: skip


@call.share(2)
def paired(draw: Draw) -> Call:
    """Losses of two tensors of a shape, or of shapes that broadcast, perhaps empty."""
    losses, empty = _of_pairs(draw), draw.flag(0.2)
    name = draw.choice(list(losses))
    loss, target = losses[name]
    rank = 1 if name == "MultiLabelSoftMargin" else draw.integer(0, 2)

    def inputs() -> list[torch.Tensor]:
        shape = (_rows(draw, empty), *draw.sizes(rank - 1, 1, 3), CLASSES) if rank else (CLASSES,)
        return [draw.tensor(*shape), draw.tensor(*shape)]

    return Call(f"{loss} {name} rank={rank}", lambda m, x, y: m(x, target(y)), inputs, loss)


@call
def marginal(draw: Draw) -> Call:
    """Losses of several labels, triplets and pairs with margins."""
    reduction, margin = _reduction(draw), draw.choice([0.2, 1.0])
    multi = nn.MultiLabelMarginLoss(reduction=reduction)
    triplet = nn.TripletMarginLoss(margin, p=draw.choice([1.0, 2.0, 3.0]), swap=draw.flag(), reduction=reduction)
    distant = nn.TripletMarginWithDistanceLoss(
        distance_function=lambda a, b: 1 - F.cosine_similarity(a, b),
        margin=margin,
        swap=draw.flag(),
        reduction=reduction,
    )
    cosine = nn.CosineEmbeddingLoss(margin=0.2, reduction=reduction)
    ranking = nn.MarginRankingLoss(margin=margin, reduction=reduction)
    gaussian = nn.GaussianNLLLoss(full=draw.flag(), reduction=reduction)
    ways = {
        "several labels": (multi, lambda m, x, y, z: m(x, y.argsort(-1).masked_fill(y.argsort(-1) == 2, -1))),
        "triplet": (triplet, lambda m, x, y, z: m(x, y, z)),
        "triplet by cosine": (distant, lambda m, x, y, z: m(x, y, z)),
        "cosine": (cosine, lambda m, x, y, z: m(x, y, z[..., 0].sign())),
        "ranking": (ranking, lambda m, x, y, z: m(x, y, z.sign())),
        "gaussian": (gaussian, lambda m, x, y, z: m(x, y, z.exp())),
        "gaussian of one variance": (gaussian, lambda m, x, y, z: m(x, y, z[..., :1].exp())),
    }
    name = draw.choice(list(ways))
    loss, function = ways[name]

    def inputs() -> list[torch.Tensor]:
        rows = draw.integer(1, 4)
        return [draw.tensor(rows, CLASSES) for _ in range(3)]

    return Call(f"{name} {loss}", function, inputs, loss)


@call
def alignment(draw: Draw) -> Call:
    """CTCLoss of random lengths, some too short for their labels."""
    infinite, reduction, blank = draw.flag(), _reduction(draw), draw.choice([0, 2])
    loss = nn.CTCLoss(blank=blank, reduction=reduction, zero_infinity=infinite)
    joined = draw.flag(0.3)

    def function(
        m: nn.Module, x: torch.Tensor, y: torch.Tensor, lengths: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        value = m(x.log_softmax(-1), y, lengths, counts)
        return value if infinite else value.clamp(max=1e3)

    def inputs() -> list[torch.Tensor]:
        steps, batch, most = draw.integer(4, 7), draw.integer(1, 3), 3
        counts = draw.labels(most + 1, batch, low=1)
        lengths = draw.labels(steps + 1, batch, low=2 if infinite else steps)
        labels = draw.labels(4, batch, most, low=1) if blank == 0 else draw.labels(2, batch, most)
        if joined:
            labels = torch.cat([row[:count] for row, count in zip(labels, counts, strict=True)])
        return [draw.tensor(steps, batch, 4), labels, lengths, counts]

    return Call(f"{loss} {blank} {reduction} {infinite} joined={joined}", function, inputs, loss)


@call
def adaptive_softmax(draw: Draw) -> Call:
    """AdaptiveLogSoftmaxWithLoss: of all classes, or of labels."""
    module, whole = nn.AdaptiveLogSoftmaxWithLoss(3, 8, [2, 5], div_value=2.0, head_bias=draw.flag()), draw.flag()

    def function(m: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return m.log_prob(x) if whole else m(x, y).loss

    def inputs() -> list[torch.Tensor]:
        rows = draw.integer(1, 5)
        return [draw.tensor(rows, 3), draw.labels(8, rows)]

    return Call(f"AdaptiveLogSoftmaxWithLoss whole={whole}", function, inputs, module)
