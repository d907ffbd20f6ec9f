"""Perplexity of a text: in PyTorch, and of an exported file in onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from lm.decoding import Decoder
from lm.text import Ids

__all__ = ["mean_loss", "onnx_loss", "perplexity", "torch_loss"]

_ROWS = 16


def perplexity(loss: float) -> float:
    """Among how many equally likely tokens the model hesitates. Above e^700 a float ends."""
    return math.exp(min(loss, 700.0))


def onnx_loss(decoder: Decoder, batches: Iterator[Ids]) -> float:
    """Mean loss a token of an exported model, from its scores; every token but a row's first is predicted."""
    return mean_loss(lambda ids: torch.from_numpy(decoder.scores(ids)), batches)


def torch_loss(model: nn.Module, batches: Iterator[Ids]) -> float:
    """The same of a module, in evaluation mode."""
    device, training = next(model.parameters()).device, model.training

    def scores(ids: Ids) -> Tensor:
        logits: Tensor = model(input_ids=torch.from_numpy(ids).to(device)).logits
        return logits

    model.eval()
    try:
        with torch.no_grad():
            return mean_loss(scores, batches)
    finally:
        model.train(training)


def mean_loss(scores: Callable[[Ids], Tensor], batches: Iterator[Ids]) -> float:
    """Mean negative log-likelihood a predicted token, added up in double precision.

    Args:
        scores: of the token after each place, [rows, length, vocabulary], for ids [rows, length].
        batches: of ids; they may differ in both sizes.
    """
    total, count = 0.0, 0
    for ids in batches:
        for scores_TV, row in zip(scores(ids), torch.from_numpy(ids), strict=True):
            label_T = row[1:].to(scores_TV.device)
            # In parts small enough for memory that is there already, and without a copy of the scores.
            for some, label in zip(scores_TV[:-1].split(_ROWS), label_T.split(_ROWS), strict=True):
                total += float(nn.functional.cross_entropy(some.float(), label, reduction="none").double().sum())
            count += len(label_T)
    return total / count
