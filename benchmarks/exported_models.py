"""Small models of sentences, running text and pictures, as functions of tensors to logits that exporters take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers
from torch import nn

__all__ = ["Case", "cases", "token_loss"]

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


class Sentences(nn.Module):
    """A model of sentences as a function of tensors to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids, attention_mask, token_type_ids).logits
        return logits


class Text(Sentences):
    """The same of a model of running text."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        logits: torch.Tensor = self.model(input_ids).logits
        return logits


class Pictures(Sentences):
    """The same of a model of pictures."""

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        logits: torch.Tensor = self.model(pixel_values).logits
        return logits


def token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A loss, as a trainer asks for one."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


@dataclass(frozen=True)
class Case:
    """A model, sample inputs, and what their axes are called."""

    model: Callable[[], nn.Module]
    inputs: dict[str, torch.Tensor]
    axes: dict[int, str]


def cases() -> dict[str, Case]:
    """The four models."""
    ids = torch.randint(1, 200, (3, 12))
    mask = (torch.arange(12) < torch.tensor([[12], [7], [4]])).long()
    text, picture = {0: "batch", 1: "length"}, {0: "batch"}
    bert = transformers.BertConfig(vocab_size=200, intermediate_size=128, **SMALL)
    gpt2 = transformers.GPT2Config(
        vocab_size=200, n_embd=64, n_layer=2, n_head=4, n_positions=64, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    vit = transformers.ViTConfig(intermediate_size=128, image_size=32, patch_size=8, **SMALL)
    resnet = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[2, 2, 2, 2], layer_type="basic"
    )
    return {
        "BERT": Case(
            lambda: Sentences(transformers.BertForSequenceClassification(bert)),
            {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}, text,
        ),
        "GPT-2": Case(lambda: Text(transformers.GPT2LMHeadModel(gpt2)), {"input_ids": ids}, text),
        "ViT": Case(
            lambda: Pictures(transformers.ViTForImageClassification(vit)),
            {"pixel_values": torch.randn(3, 3, 32, 32)}, picture,
        ),
        "ResNet": Case(
            lambda: Pictures(transformers.ResNetForImageClassification(resnet)),
            {"pixel_values": torch.randn(3, 3, 64, 64)}, picture,
        ),
    }  # fmt: skip
