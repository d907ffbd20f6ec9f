"""Perplexity of a text: in PyTorch, and of an exported file in onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from lm.decoding import Decoder
from lm.text import Ids

__all__ = ["mean_loss", "onnx_loss", "perplexity", "torch_loss"]

_ROWS = 256


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
        scores_NV = scores(ids)[:, :-1].flatten(0, 1)
        label_N = torch.from_numpy(ids[:, 1:]).reshape(-1).to(scores_NV.device)
        # In parts: the softmax takes as much memory as the scores.
        for some, label in zip(scores_NV.split(_ROWS), label_N.split(_ROWS), strict=True):
            total += float(nn.functional.cross_entropy(some.float(), label, reduction="none").double().sum())
        count += len(label_N)
    return total / count
