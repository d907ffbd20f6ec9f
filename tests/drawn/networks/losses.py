"""Losses of networks, and by what micro-batches weigh under them (docs/concepts.md, "Micro-batch")."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tests.drawn.networks.parts import IGNORED, VOCABULARY, Batch, Scores, loss

__all__ = ["weight_of"]

cross_entropy = F.cross_entropy
_WEIGHTS: dict[str, Callable[[Batch, torch.Tensor], torch.Tensor]] = {}


def weight_of(name: str, batch: Batch, class_weights: torch.Tensor) -> float:
    """What a micro-batch weighs: its labels under a mean over labels, and 1 under what is not recognised as one."""
    return float(_WEIGHTS[name](batch, class_weights)) if name in _WEIGHTS else 1.0


def _weighs(weight: Callable[[Batch, torch.Tensor], torch.Tensor]) -> Callable[[Callable], Callable]:
    """Say what a micro-batch weighs under a loss."""

    def note(function: Callable) -> Callable:
        _WEIGHTS[function.__name__] = weight
        return function

    return note


def _labels(batch: Batch, class_weights: torch.Tensor) -> torch.Tensor:
    return (batch.labels != IGNORED).sum()


@loss
@_weighs(_labels)
def rows(scores: Scores):
    """Cross entropy of (B * S, VOCABULARY)."""
    return cross_entropy(scores.rows, scores.row_labels)


@loss
@_weighs(_labels)
def classes_second(scores: Scores):
    """Cross entropy of (B, VOCABULARY, S)."""
    return cross_entropy(scores.logits.transpose(1, 2), scores.batch.labels)


@loss
@_weighs(lambda batch, _: (batch.labels[:, 1:] != IGNORED).sum())
def next_token(scores: Scores):
    """Logits against the labels of the next place."""
    return cross_entropy(scores.logits[:, :-1].reshape(-1, VOCABULARY), scores.batch.labels[:, 1:].reshape(-1))


@loss
@_weighs(lambda batch, _: ((batch.labels != IGNORED) & (batch.mask == 1)).sum())
def tokens_only(scores: Scores):
    """Labels of padding are ignored by `where`."""
    return cross_entropy(scores.rows, torch.where(scores.batch.mask == 1, scores.batch.labels, IGNORED).view(-1))


@loss
@_weighs(_labels)
def selected(scores: Scores):
    """Labelled rows are taken out by a mask."""
    return cross_entropy(scores.logits[scores.labelled], scores.batch.labels[scores.labelled])


@loss
@_weighs(_labels)
def masked_head(scores: Scores):
    """The head sees zeros in place of padding."""
    hidden = scores.hidden * scores.batch.mask[..., None]
    return cross_entropy(scores.network.head(hidden).view(-1, VOCABULARY), scores.row_labels)


@loss
@_weighs(lambda batch, weights: (weights[batch.labels.clamp(min=0)] * (batch.labels != IGNORED)).sum())
def weighed_classes(scores: Scores):
    """Cross entropy with weights of classes."""
    return cross_entropy(scores.rows, scores.row_labels, weight=scores.network.class_weights)


@loss
@_weighs(lambda batch, _: torch.tensor(len(batch.labels)))
def pooled(scores: Scores):
    """A label for the mean of a sequence's tokens."""
    mask = scores.batch.mask
    pooled_rows = (scores.hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
    return cross_entropy(scores.network.pair(pooled_rows), scores.batch.labels[:, 0].clamp(0, 1))


@loss
def masked_mean(scores: Scores):
    """Losses of rows, and their mean over tokens."""
    losses = cross_entropy(scores.rows, scores.row_labels, reduction="none").view(scores.batch.labels.shape)
    return (losses * scores.batch.mask).sum() / scores.batch.mask.sum()


@loss
def smoothed(scores: Scores):
    """Cross entropy of smoothed labels."""
    return cross_entropy(scores.rows, scores.row_labels, label_smoothing=0.1)


@loss
def with_normaliser(scores: Scores):
    """A term of all rows' logarithms of sums besides."""
    return cross_entropy(scores.rows, scores.row_labels) + 1e-2 * scores.logits.logsumexp(-1).pow(2).mean()


@loss
def two_heads(scores: Scores):
    """A label for each row, and another for a sequence's first."""
    of_first = cross_entropy(scores.network.pair(scores.hidden[:, 0]), scores.batch.labels[:, 0].clamp(0, 1))
    return cross_entropy(scores.rows, scores.row_labels) + of_first


@loss
def divergence(scores: Scores):
    """A divergence from the sequence before besides."""
    other = scores.logits.detach().roll(1, 0).softmax(-1)
    divergence = F.kl_div(scores.logits.log_softmax(-1), other, reduction="batchmean")
    return cross_entropy(scores.rows, scores.row_labels) + divergence


@loss
def squares(scores: Scores):
    """Of the hidden states of tokens; no head."""
    return ((scores.hidden - 1).pow(2).mean(-1) * scores.batch.mask).sum()


@loss
def binary(scores: Scores):
    """Each class against the others, rows without label weighing nothing."""
    targets = F.one_hot(scores.batch.labels.clamp(min=0), VOCABULARY).to(scores.logits.dtype)
    weight = scores.labelled[..., None].to(scores.logits.dtype)
    return F.binary_cross_entropy_with_logits(scores.logits, targets, weight=weight, reduction="sum")


@loss
def gathered(scores: Scores):
    """Cross entropy by gather, with a mask of labels."""
    labels = scores.batch.labels.clamp(min=0)[..., None]
    likelihoods = scores.logits.log_softmax(-1).gather(-1, labels)[..., 0]
    return -(likelihoods * scores.labelled).sum() / scores.labelled.sum().clamp(min=1)


@loss
def summed(scores: Scores):
    """A sum over rows by the number of sequences."""
    return cross_entropy(scores.rows, scores.row_labels, reduction="sum") / len(scores.batch.tokens)
