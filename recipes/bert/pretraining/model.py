"""BERT with both losses inside, built from a configuration file or a published model's sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from corpus.workspace import DataError, read_json
from dataset import IGNORED
from torch import Tensor, nn
from transformers import BertConfig, BertForPreTraining

from ontrain.errors import nearest

__all__ = ["PUBLISHED", "PretrainingBert", "make_model", "model_desc", "padded_size", "read_config", "without_decay"]

_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
PUBLISHED: dict[str, dict[str, int]] = {
    "bert-base-uncased": {"vocab_size": 30522},
    "bert-base-cased": {"vocab_size": 28996},
    "bert-base-multilingual-cased": {"vocab_size": 119547},
    "bert-large-uncased": {"vocab_size": 30522, **_LARGE},
    "bert-large-cased": {"vocab_size": 28996, **_LARGE},
}
"""Sizes of the models that --bert_model names, where they differ from BertConfig's own."""

_SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size",
)  # fmt: skip
# In configuration files of NVIDIA and TensorFlow; they say nothing of the model.
_FOREIGN = {"output_all_encoded_layers", "gradient_checkpointing", "position_embedding_type", "directionality"}
_NO_DECAY = ("bias", "gamma", "beta", "LayerNorm")


class PretrainingBert(BertForPreTraining):
    """BertForPreTraining that returns its losses; parameters have the names of the class that it is."""

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        segment_ids: Tensor,
        input_mask: Tensor,
        masked_lm_labels: Tensor,
        next_sentence_labels: Tensor,
        share: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (loss, loss of masked words, loss of next sentence), 0-d each.

        Args:
            input_ids, segment_ids, input_mask, masked_lm_labels: int64 [B, L].
            next_sentence_labels: int64 [B].
            share: 0-d float32, the labels of this micro-batch divided by those of a mean one. Means over micro-batches
                and processes are then the means over all labels, however unevenly these are spread.
        """
        out = super().forward(input_ids, attention_mask=input_mask, token_type_ids=segment_ids)
        scores = out.prediction_logits.flatten(0, 1)
        words = nn.functional.cross_entropy(scores, masked_lm_labels.flatten(), ignore_index=IGNORED)
        follows = nn.functional.cross_entropy(out.seq_relationship_logits, next_sentence_labels)
        if share is not None:
            words = words * share
        return words + follows, words, follows


def model_desc(max_seq_length: int, *, with_share: bool) -> dict[str, Any]:
    """Return the description for ORTTrainer; the number of sequences may vary."""
    tokens = ["batch", max_seq_length]
    inputs = [(name, tokens) for name in ("input_ids", "segment_ids", "input_mask", "masked_lm_labels")]
    inputs.append(("next_sentence_labels", ["batch"]))
    if with_share:
        inputs.append(("share", []))
    return {
        "inputs": inputs,
        "outputs": [("loss", [], True), ("masked_lm_loss", []), ("next_sentence_loss", [])],
    }


def read_config(path: Path | None, bert_model: str, max_seq_length: int) -> BertConfig:
    """Return the configuration of a bert_config.json, or else of the published model named.

    Raises:
        DataError: the file is missing, no such configuration, or the model has too few positions for the sequences.
    """
    if path is None and bert_model not in PUBLISHED:
        raise DataError(
            f"--bert_model {bert_model} is none of {', '.join(PUBLISHED)}: give the sizes in a --config_file"
        )
    given = _read_json(path) if path is not None else PUBLISHED[bert_model]
    where = f"--config_file {path}" if path is not None else f"--bert_model {bert_model}"
    known = BertConfig().to_dict()
    for name in given:
        if name not in known and name not in _FOREIGN and not name.startswith("pooler_"):
            raise DataError(f"{where}: BERT has no setting {name!r}; nearest: {nearest(name, known)}")
    for name in _SIZES:
        value = given.get(name, known[name])
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise DataError(f"{where}: {name} is {value!r}, it must be a whole number from 1")
    config = BertConfig(**{name: value for name, value in given.items() if name in known})
    if config.hidden_size % config.num_attention_heads:
        raise DataError(
            f"{where}: hidden_size {config.hidden_size} is not divisible by num_attention_heads "
            f"{config.num_attention_heads}"
        )
    if max_seq_length > config.max_position_embeddings:
        raise DataError(
            f"--max_seq_length {max_seq_length} is longer than the {config.max_position_embeddings} positions of the "
            f"model ({where}): raise max_position_embeddings there, or give shorter sequences"
        )
    return config


def padded_size(vocab_size: int) -> int:
    """Return the size of the vocabulary as it is trained: a multiple of 8, which matrix units want."""
    return (vocab_size + 7) // 8 * 8


def without_decay(names: Sequence[str]) -> list[str]:
    """Return the parameters that get no weight decay: biases and layer norms."""
    return [name for name in names if any(part in name for part in _NO_DECAY)]


def make_model(config: BertConfig, seed: int) -> PretrainingBert:
    """Return a model with initial weights that the seed decides, its vocabulary padded."""
    torch.manual_seed(seed)
    padded = BertConfig.from_dict({**config.to_dict(), "vocab_size": padded_size(config.vocab_size)})
    return PretrainingBert(padded)


def _read_json(path: Path) -> Mapping[str, Any]:
    found = read_json(path, f"--config_file {path}")
    if not isinstance(found, dict) or "hidden_size" not in found:
        raise DataError(f"--config_file {path} is no configuration of BERT: it has no hidden_size")
    return found
