"""The workloads that are measured: real architectures, random weights, fixed seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.real_lengths import cola, xquad
from benchmarks.workloads import EPOCHS, MODELS

__all__ = ["Batch", "Reader", "make", "reader"]

_LOGITS = "-logits"

Batch = dict[str, torch.Tensor]
Reader = Callable[[torch.Tensor, Batch], float]
"""Computes a figure that a loop reports from the logits of a step and its batch."""


def make(name: str, layers: int = 4) -> tuple[torch.nn.Module, list[Batch]]:
    """Return a training-mode model of BERT-base's or GPT-2's width with `layers` layers, and batches by input name.

    bert: masked language modelling, 8 × 128 tokens, 15 % of them labelled.
    bert-dense: the same, every token labelled.
    gpt2: causal language modelling, 2 × 512 tokens, every token labelled.
    bert-logits, gpt2-logits: the same steps, after each of which the accuracy is computed from the logits.
    cola: BERT classifying sentences, 16 batches of 32, each padded to its longest (2.1 padded tokens to a real one).
    xquad: BERT answering questions, 8 batches of 8 windows padded to 384 (2.1 to one).
    cola-epoch: batches of cola, none of them twice: all sentences in one shuffled order.
    xquad-epoch: 100 batches of 8 windows, each batch padded to its own longest, none of them twice.

    Raises:
        DataMissingError: the texts of cola or xquad are not on this machine.
    """
    torch.manual_seed(0)
    name = name.removesuffix(_LOGITS)
    if name == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        model: Any = GPT2LMHeadModel(GPT2Config(n_layer=layers, use_cache=False))
        ids = torch.randint(0, 50257, (2, 512), generator=torch.Generator().manual_seed(1))
        return model.train(), [{"input_ids": ids, "labels": ids.clone()}]
    if name not in (*MODELS, *EPOCHS):
        raise ValueError(f"no model {name!r}; there are {', '.join([*MODELS, *EPOCHS])}")
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        BertForQuestionAnswering,
        BertForSequenceClassification,
    )

    config = BertConfig(num_hidden_layers=layers)
    if name.startswith("cola"):
        return BertForSequenceClassification(config).train(), cola(EPOCHS.get(name, 16))
    if name.startswith("xquad"):
        epoch = name in EPOCHS
        return BertForQuestionAnswering(config).train(), xquad(EPOCHS.get(name, 8), own_lengths=epoch)
    return BertForMaskedLM(config).train(), [_masked(labelled_part=1.0 if name == "bert-dense" else 0.15)]


def reader(name: str) -> Reader | None:
    """Return what the loop of a workload computes from each step's logits: an accuracy, or nothing (None)."""
    if not name.endswith(_LOGITS):
        return None
    later = int(name.startswith("gpt2"))  # scores of a place are for the token behind it

    def accuracy(logits: torch.Tensor, batch: Batch) -> float:
        labels = batch["labels"][:, later:]
        labelled = labels != -100
        best = logits.detach()[:, : labels.shape[1]].argmax(-1)
        return float((best == labels)[labelled].float().mean())

    return accuracy


def _masked(labelled_part: float) -> Batch:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1000, 30522, (8, 128), generator=generator)
    draws = torch.rand(ids.shape, generator=generator)
    return {
        "input_ids": torch.where(draws < 0.15, 103, ids),
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
        "labels": torch.where(draws < labelled_part, ids, -100),
    }
