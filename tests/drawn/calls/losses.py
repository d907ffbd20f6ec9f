"""Losses, with each reduction."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.drawn.calls.call import Call, call
from tests.drawn.draw import Draw

CLASSES = 5


@call
def cross_entropy(draw: Draw) -> Call:
    """Of labels or of probabilities, with weights of classes, smoothing and an ignored class."""
    rank = draw.integer(0, 2)
    settings = dict(reduction=_reduction(draw), label_smoothing=draw.choice([0.0, 0.1]))
    if draw.flag():
        settings["weight"] = draw.uniform(CLASSES)
    if draw.flag():
        settings["ignore_index"] = draw.choice([-100, 2])
    soft = draw.flag() and "ignore_index" not in settings

    def inputs():
        rows, sizes = draw.integer(2, 5), draw.sizes(rank, 2, 4)
        labels = draw.labels(CLASSES, rows, *sizes)
        if settings.get("ignore_index") == -100:
            labels.view(-1)[0] = -100
        targets = draw.uniform(rows, CLASSES, *sizes).softmax(1) if soft else labels
        return draw.tensor(rows, CLASSES, *sizes), targets

    return Call(f"cross_entropy {rank} soft={soft} {settings}", lambda x, y: F.cross_entropy(x, y, **settings), inputs)


@call
def nll(draw: Draw) -> Call:
    """With weights of classes and an ignored class."""
    settings = dict(weight=draw.maybe(draw.uniform(4)), ignore_index=draw.choice([-100, 1]), reduction=_reduction(draw))
    return Call(
        f"nll_loss {settings}",
        lambda x, y: F.nll_loss(x.log_softmax(1), y, **settings),
        lambda: _labelled(draw),
    )


@call
def multi_margin(draw: Draw) -> Call:
    """With either power and weights of classes."""
    settings = dict(
        p=draw.choice([1, 2]), margin=draw.choice([1.0, 0.3]), weight=draw.maybe(draw.uniform(4)),
        reduction=_reduction(draw),
    )  # fmt: skip

    def inputs():
        rows = draw.integer(3, 5)
        return draw.tensor(rows, 4), draw.labels(4, rows)

    return Call(f"multi_margin_loss {settings}", lambda x, y: F.multi_margin_loss(x, y, **settings), inputs)


def _reduction(draw: Draw) -> str:
    return draw.choice(["mean", "sum", "none"])


def _labelled(draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    rows = draw.integer(3, 5)
    return draw.tensor(rows, 4, 2), draw.labels(4, rows, 2)


def _pair(draw: Draw):
    """Two tensors of a shape, of any number of rows."""

    def inputs():
        rows = draw.integer(2, 5)
        return draw.tensor(rows, 4), draw.tensor(rows, 4)

    return inputs


def _of_pairs(draw: Draw, name: str, loss, **settings) -> Call:
    """A call of `loss(x, y, **settings)` with any reduction."""
    settings = {"reduction": _reduction(draw)} | settings
    return Call(f"{name} {settings}", lambda x, y: loss(x, y, **settings), _pair(draw))


@call
def binary_cross_entropy(draw: Draw) -> Call:
    """Of probabilities."""
    return _of_pairs(
        draw, "binary_cross_entropy", lambda x, y, **s: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), **s),
        weight=draw.maybe(draw.uniform(4)),
    )  # fmt: skip


@call
def binary_cross_entropy_of_logits(draw: Draw) -> Call:
    """With weights of elements and of the positive class."""
    return _of_pairs(
        draw, "with_logits", lambda x, y, **s: F.binary_cross_entropy_with_logits(x, y.sigmoid(), **s),
        weight=draw.maybe(draw.uniform(4)), pos_weight=draw.maybe(draw.uniform(4) * 3),
    )  # fmt: skip


@call
def divergence(draw: Draw) -> Call:
    """kl_div, of logarithms or not."""
    logarithms = draw.flag()

    def loss(x, y, **settings):
        target = y.log_softmax(-1) if logarithms else y.softmax(-1)
        return F.kl_div(x.log_softmax(-1), target, log_target=logarithms, **settings)

    reduction = draw.choice(["mean", "sum", "none", "batchmean"])
    return _of_pairs(draw, f"kl_div log_target={logarithms}", loss, reduction=reduction)


@call
def huber(draw: Draw) -> Call:
    """huber_loss."""
    return _of_pairs(draw, "huber_loss", F.huber_loss, delta=draw.choice([0.3, 1.0, 2.0]))


@call
def smooth_l1(draw: Draw) -> Call:
    """smooth_l1_loss, with a corner where beta is 0."""
    return _of_pairs(draw, "smooth_l1_loss", F.smooth_l1_loss, beta=draw.choice([0.0, 0.5, 1.0]))


@call
def gaussian(draw: Draw) -> Call:
    """gaussian_nll_loss, with variances below eps."""
    return _of_pairs(
        draw, "gaussian_nll_loss", lambda x, y, **s: F.gaussian_nll_loss(x, y, x.abs(), **s),
        full=draw.flag(), eps=draw.choice([1e-6, 0.5]),
    )  # fmt: skip


@call
def poisson(draw: Draw) -> Call:
    """poisson_nll_loss, with Stirling's term or without."""
    return _of_pairs(
        draw, "poisson_nll_loss", lambda x, y, **s: F.poisson_nll_loss(x.abs(), y.abs() * 3, **s),
        log_input=draw.flag(), full=draw.flag(),
    )  # fmt: skip


@call
def hinge(draw: Draw) -> Call:
    """hinge_embedding_loss."""
    return _of_pairs(
        draw, "hinge_embedding_loss", lambda x, y, **s: F.hinge_embedding_loss(x, y.sign(), **s),
        margin=draw.choice([1.0, 0.5]),
    )  # fmt: skip


@call
def cosine_embedding(draw: Draw) -> Call:
    """cosine_embedding_loss."""
    return _of_pairs(
        draw, "cosine_embedding_loss", lambda x, y, **s: F.cosine_embedding_loss(x, y, y[:, 0].sign(), **s),
        margin=draw.choice([0.0, 0.5]),
    )  # fmt: skip


@call
def ranking(draw: Draw) -> Call:
    """margin_ranking_loss."""
    return _of_pairs(
        draw, "margin_ranking_loss", lambda x, y, **s: F.margin_ranking_loss(x, y, y.detach().sign(), **s),
        margin=draw.choice([0.0, 0.5]),
    )  # fmt: skip


@call
def soft_margin(draw: Draw) -> Call:
    """soft_margin_loss."""
    return _of_pairs(draw, "soft_margin_loss", lambda x, y, **s: F.soft_margin_loss(x, y.sign(), **s))
