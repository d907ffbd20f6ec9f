"""How models of transformers are made, from configurations of a few thousand parameters. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.models.zoo.entry import Batch, Entry

__all__ = [
    "BRANCHES",
    "HEADS",
    "SEQ2SEQ",
    "T5",
    "TEXT",
    "UNROLLED",
    "VOCAB",
    "WIDTH",
    "decoder",
    "encoder",
    "image_model",
    "mask",
    "masked_text",
    "fourier_text",
    "model",
    "seq2seq",
    "text",
    "tokens",
    "without_dropout",
    "IMAGE",
]

VOCAB, WIDTH, HEADS = 50, 16, 2

TEXT = dict(
    vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=HEADS, intermediate_size=24,
    max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
SEQ2SEQ = dict(
    vocab_size=VOCAB, d_model=WIDTH, encoder_layers=1, decoder_layers=1, encoder_attention_heads=HEADS,
    decoder_attention_heads=HEADS, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=32, pad_token_id=0,
    bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None,
)  # fmt: skip
T5 = dict(
    vocab_size=VOCAB, d_model=WIDTH, d_kv=8, d_ff=24, num_layers=1, num_decoder_layers=1, num_heads=HEADS,
    pad_token_id=0, decoder_start_token_id=0,
)  # fmt: skip
IMAGE = dict(image_size=16, patch_size=4, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=HEADS,
             intermediate_size=24, num_labels=5)  # fmt: skip


UNROLLED = "forward loops over the steps in Python"
BRANCHES = "branches on the values of a tensor"


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, VOCAB, (batch, length))


def mask(ids: torch.Tensor) -> torch.Tensor:
    visible = torch.ones_like(ids)
    visible[0, -2:] = 0
    return visible


def masked_text(batch: int, length: int) -> Batch:
    ids = tokens(batch, length)
    labels = torch.where(torch.rand(batch, length) < 0.4, ids, -100)
    labels[:, 0] = ids[:, 0]
    return {"input_ids": ids, "attention_mask": mask(ids), "labels": labels}


def fourier_text(batch: int, length: int) -> Batch:
    ids = tokens(batch, length)
    return {"input_ids": ids, "labels": ids}


def causal_text(batch: int, length: int) -> Batch:
    ids = tokens(batch, length)
    return {"input_ids": ids, "attention_mask": mask(ids), "labels": torch.where(mask(ids) == 1, ids, -100)}


def text_pairs(batch: int, length: int) -> Batch:
    ids = tokens(batch, length)
    return {"input_ids": ids, "attention_mask": mask(ids), "labels": tokens(batch, length - 2)}


def images(batch: int, _: int) -> Batch:
    return {"pixel_values": torch.randn(batch, 3, 16, 16), "labels": torch.randint(0, 5, (batch,))}


def model(kind: str, model_type: str, **config: Any) -> Callable[[], nn.Module]:
    """Return what makes a model by its auto class, "ForMaskedLM", with every kind of dropout off."""

    def make() -> nn.Module:
        import transformers

        configuration = transformers.AutoConfig.for_model(model_type, **config)
        without_dropout(configuration)
        return getattr(transformers, f"AutoModel{kind}").from_config(configuration)

    return make


def without_dropout(config: Any) -> None:
    for name, value in vars(config).items():
        if hasattr(value, "to_dict"):
            without_dropout(value)
        elif "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    for name in ("apply_spec_augment", "use_cache"):
        if hasattr(config, name):
            setattr(config, name, False)


def text(
    model_type: str, kind: str, *, fixed: str = "", refused: str = "", way_out: str = "",
    dtype: torch.dtype = torch.float64, **config: Any,
) -> Entry:  # fmt: skip
    family = {"ForMaskedLM": "encoder", "ForCausalLM": "decoder", "ForSeq2SeqLM": "encoder-decoder"}[kind]
    batch = {"ForMaskedLM": masked_text, "ForCausalLM": causal_text, "ForSeq2SeqLM": text_pairs}[kind]
    return Entry(model_type, family, model(kind, model_type, **config), batch, refused, way_out, fixed, dtype)


def encoder(model_type: str, **config: Any) -> Entry:
    return text(model_type, "ForMaskedLM", **{**TEXT, **config})


def decoder(model_type: str, **config: Any) -> Entry:
    return text(model_type, "ForCausalLM", **{**TEXT, **config})


def seq2seq(model_type: str, **config: Any) -> Entry:
    return text(model_type, "ForSeq2SeqLM", **{**SEQ2SEQ, **config})


def image_model(model_type: str, **config: Any) -> Entry:
    return Entry(model_type, "vision", model("ForImageClassification", model_type, **config), images)
