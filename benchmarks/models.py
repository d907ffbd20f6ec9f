"""The models that are measured, with one batch each: real architectures, random weights, fixed seeds."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["MODELS", "make"]

MODELS = ("bert", "gpt2")


def make(name: str, layers: int = 4) -> tuple[torch.nn.Module, dict[str, torch.Tensor], list[str]]:
    """Return a training-mode model, its batch by input name, and the names of its outputs (the loss only).

    bert: BERT-base with `layers` layers, masked language modelling, 8 × 128, 15 % of the tokens labelled.
    gpt2: GPT-2 (124M's width) with `layers` layers, causal language modelling, 2 × 512, every token labelled.
    """
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    if name == "bert":
        from transformers import BertConfig, BertForMaskedLM

        model: Any = BertForMaskedLM(BertConfig(num_hidden_layers=layers))
        ids = torch.randint(1000, 30522, (8, 128), generator=generator)
        labelled = torch.rand(ids.shape, generator=generator) < 0.15
        batch = {
            "input_ids": torch.where(labelled, 103, ids),
            "attention_mask": torch.ones_like(ids),
            "token_type_ids": torch.zeros_like(ids),
            "labels": torch.where(labelled, ids, -100),
        }
    elif name == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        model = GPT2LMHeadModel(GPT2Config(n_layer=layers, use_cache=False))
        ids = torch.randint(0, 50257, (2, 512), generator=generator)
        batch = {"input_ids": ids, "labels": ids.clone()}
    else:
        raise ValueError(f"no model {name!r}; there are {', '.join(MODELS)}")
    return model.train(), batch, ["loss"]
