"""BERT's sizes from a configuration, its weights in all forms they come in, and the trained model as ONNX."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from harness.export import export
from harness.files import DataError, read_json
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import BertConfig, BertForPreTraining

from ontrain.checkpoint import read_checkpoint
from ontrain.errors import CheckpointError, nearest
from ontrain.training.upstream_checkpoint import read_upstream_checkpoint

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

_EMBEDDING, _BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
_TIED = {"cls.predictions.decoder.weight": _EMBEDDING, "cls.predictions.decoder.bias": _BIAS}
# What other programs write before the names, and instead of parts of them.
_PREFIXES = ("model_.", "module.", "bert_model_with_loss.", "bert_.", "model.")
_PARTS = ((".dense_act.", ".dense."), ("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
_NOT_WEIGHTS = ("Moment_", "Update_Count", "Step")


def read_config(path: Path | None, bert_model: str, max_seq_length: int) -> BertConfig:
    """Return the configuration of a bert_config.json, or else of the published model named; refuse a misfit."""
    if path is None and bert_model not in PUBLISHED:
        raise DataError(
            f"--bert_model {bert_model} is none of {', '.join(PUBLISHED)}: give the sizes in a --config_file"
        )
    where = f"--config_file {path}" if path is not None else f"--bert_model {bert_model}"
    settings: Any = read_json(path, where) if path is not None else PUBLISHED[bert_model]
    if path is not None and (not isinstance(settings, dict) or "hidden_size" not in settings):
        raise DataError(f"{where} is no configuration of BERT: it has no hidden_size")
    known = BertConfig().to_dict()
    for name in settings:
        if name not in known and name not in _FOREIGN and not name.startswith("pooler_"):
            raise DataError(f"{where}: BERT has no setting {name!r}; nearest: {nearest(name, known)}")
    for name in _SIZES:
        value = settings.get(name, known[name])
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise DataError(f"{where}: {name} is {value!r}, it must be a whole number from 1")
    config = BertConfig(**{name: value for name, value in settings.items() if name in known})
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


def plain(config: BertConfig) -> dict[str, Any]:
    """Return what a configuration says, for JSON and for comparing."""
    return {key: value for key, value in config.to_diff_dict().items() if key != "transformers_version"}


def read_weights(path: Path) -> tuple[dict[str, Tensor], BertConfig | None]:
    """Read weights under Hugging Face's names, and the configuration where there is one beside them.

    `path` is a checkpoint of run_pretraining.py, a folder of Hugging Face's `save_pretrained`, a file .safetensors, or
    a file of `torch.save` (.pt, .bin) that holds tensors, as NVIDIA's and onnxruntime's recipes write it.
    """
    sizes: dict[str, Any] | None = None
    if (path / "state.json").is_file() or (path / "manifest.json").is_file():
        tensors, meta = read_checkpoint(path)
        state, sizes = tensors.get("model", {}), meta.get("user_dict", {}).get("identity", {}).get("config")
    elif path.is_dir():
        files = sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))
        if not files:
            raise DataError(f"{path} holds no weights: neither a checkpoint nor *.safetensors or pytorch_model.bin")
        state = {name: tensor for file in files for name, tensor in _read_file(file).items()}
        if (config_file := path / "config.json").is_file():
            sizes = json.loads(config_file.read_text())
    elif path.is_file():
        state = _read_file(path)
    else:
        raise DataError(f"{path}: no such file or folder with weights")
    return own_names(state), None if sizes is None else BertConfig(**sizes)


def _read_file(path: Path) -> dict[str, Tensor]:
    if path.suffix != ".safetensors":
        return read_upstream_checkpoint([path]).flat
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read", reason=str(error)) from error


def own_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under Hugging Face's names, tied ones once; moments and counters are left out."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.startswith(_NOT_WEIGHTS) or name.endswith(("_fp16", "position_ids", "token_type_ids")):
            continue
        for prefix in _PREFIXES:
            name = name.removeprefix(prefix)
        for theirs, ours in _PARTS:
            name = name.replace(theirs, ours)
        if not name.startswith(("bert.", "cls.")):
            name = f"bert.{name}"  # an encoder alone, as sentence encoders are published
        renamed.setdefault(_TIED.get(name, name), tensor)
    return renamed


def fitted(state: Mapping[str, Tensor], model: BertForPreTraining, padded: int) -> list[str]:
    """Copy weights into a model whose vocabulary is padded, and return the names that were not among them."""
    own = {name: p for name, p in model.named_parameters() if name not in _TIED}
    weights = dict(state)
    for name in (_EMBEDDING, _BIAS):
        if name in weights and padded - 8 < (rows := len(weights[name])) < padded:
            # Words that do not exist: zero, and as unlikely as the least likely word.
            shape = (padded - rows, *weights[name].shape[1:])
            new = weights[name].min().expand(shape) if name == _BIAS else weights[name].new_zeros(shape)
            weights[name] = torch.cat([weights[name], new])
    if strange := sorted(set(weights) - set(own)):
        raise DataError(f"the weights hold {strange[0]!r}, which this model has not ({len(strange)} such names)")
    for name, tensor in weights.items():
        if tensor.shape != own[name].shape:
            hint = ": the vocabulary is of another size" if name in (_EMBEDDING, _BIAS) else ""
            raise DataError(
                f"{name} has shape {list(tensor.shape)} in the weights and {list(own[name].shape)} in the model{hint}"
            )
    if not weights:
        raise DataError("there is no weight of BERT in it")
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(tensor)
    return sorted(set(own) - set(weights))


def hugging_face_model(state: Mapping[str, Tensor], config: BertConfig) -> BertForPreTraining:
    """Return transformers' own model with these weights, the padding of the vocabulary cut off."""
    model, cut = BertForPreTraining(config), own_names(state)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name in _TIED:
                continue
            if name in (_EMBEDDING, _BIAS) and name in cut:
                cut[name] = cut[name][: config.vocab_size]
            if name not in cut or cut[name].shape != p.shape:
                have = list(cut[name].shape) if name in cut else "missing"
                raise CheckpointError(f"{name} is {have}, the configuration wants {list(p.shape)}")
            p.copy_(cut[name])
    return model.eval()


class _Heads(nn.Module):
    """Both heads' scores: [B, L, vocabulary] and [B, 2]."""

    def __init__(self, bert: BertForPreTraining) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, segment_ids: Tensor, input_mask: Tensor) -> tuple[Tensor, Tensor]:
        out = self.bert(input_ids, attention_mask=input_mask, token_type_ids=segment_ids)
        return out.prediction_logits, out.seq_relationship_logits


def save_onnx(state: Mapping[str, Tensor], config: BertConfig, path: Path) -> None:
    """Write the model with these weights as ONNX; batch and length may vary, the vocabulary has its true size."""
    model = _Heads(hugging_face_model({name: tensor.cpu() for name, tensor in state.items()}, config))
    samples = {name: torch.ones(2, 8, dtype=torch.int64) for name in ("input_ids", "segment_ids", "input_mask")}
    export(model, samples, ("batch", "length"), ("prediction_scores", "seq_relationship_score"), path)
