"""Weights of BERT in all forms they come in: checkpoints, Hugging Face's folders, PyTorch's files, NVIDIA's names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from corpus.workspace import DataError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertConfig, BertForPreTraining

from ontrain.checkpoint import read_checkpoint
from ontrain.errors import CheckpointError
from ontrain.training.upstream_checkpoint import read_upstream_checkpoint

__all__ = ["fitted", "hugging_face_model", "own_names", "read_weights"]

_EMBEDDING, _BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
_TIED = {"cls.predictions.decoder.weight": _EMBEDDING, "cls.predictions.decoder.bias": _BIAS}
# What other programs write before the names, and instead of parts of them.
_PREFIXES = ("model_.", "module.", "bert_model_with_loss.", "bert_.", "model.")
_PARTS = (
    (".dense_act.", ".dense."),
    ("LayerNorm.gamma", "LayerNorm.weight"),
    ("LayerNorm.beta", "LayerNorm.bias"),
)
_NOT_WEIGHTS = ("Moment_", "Update_Count", "Step")


def read_weights(path: Path) -> tuple[dict[str, Tensor], BertConfig | None]:
    """Read weights under Hugging Face's names, and the configuration where there is one beside them.

    Args:
        path: a checkpoint of run_pretraining.py, a folder of Hugging Face's `save_pretrained`, a file .safetensors, or
            a file of `torch.save` (.pt, .bin) that holds tensors, as NVIDIA's and onnxruntime's recipes write it.

    Raises:
        DataError: there is nothing like that at the path.
        CheckpointError: it is torn, or would run code.
    """
    if (path / "state.json").is_file() or (path / "manifest.json").is_file():
        tensors, meta = read_checkpoint(path)
        identity = meta.get("user_dict", {}).get("identity", {})
        config = BertConfig(**identity["config"]) if "config" in identity else None
        return own_names(tensors.get("model", {})), config
    if path.is_dir():
        config_file = path / "config.json"
        config = BertConfig(**json.loads(config_file.read_text())) if config_file.is_file() else None
        files = sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))
        if not files:
            raise DataError(f"{path} holds no weights: neither a checkpoint nor *.safetensors or pytorch_model.bin")
        state: dict[str, Tensor] = {}
        for file in files:
            state |= _read_file(file)
        return own_names(state), config
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder with weights")
    return own_names(_read_file(path)), None


def own_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under Hugging Face's names, tied ones once; moments and counters are left out."""
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.startswith(_NOT_WEIGHTS) or name.endswith(("_fp16", "position_ids", "token_type_ids")):
            continue
        for prefix in _PREFIXES:
            name = name.removeprefix(prefix)
        for theirs, ours in _PARTS:
            name = name.replace(theirs, ours)
        if not name.startswith(("bert.", "cls.")):
            name = f"bert.{name}"  # an encoder alone, as sentence encoders are published
        found.setdefault(_TIED.get(name, name), tensor)
    return found


def fitted(state: Mapping[str, Tensor], model: BertForPreTraining, padded: int) -> list[str]:
    """Copy weights into a model whose vocabulary is padded, and return the names that were not among them.

    Raises:
        DataError: a weight has another shape, there is one that BERT has not, or hardly any fits.
    """
    own = {name: p for name, p in model.named_parameters() if name not in _TIED}
    given = dict(state)
    for name in (_EMBEDDING, _BIAS):
        if name in given and padded - 8 < len(given[name]) < padded:
            given[name] = _padded(given[name], padded, bias=name == _BIAS)
    strange = sorted(set(given) - set(own))
    if strange:
        raise DataError(f"the weights hold {strange[0]!r}, which this model has not ({len(strange)} such names)")
    for name, tensor in given.items():
        if tensor.shape != own[name].shape:
            hint = ": the vocabulary is of another size" if name in (_EMBEDDING, _BIAS) else ""
            raise DataError(
                f"{name} has shape {list(tensor.shape)} in the weights and {list(own[name].shape)} in the model{hint}"
            )
    if not given:
        raise DataError("there is no weight of BERT in it")
    with torch.no_grad():
        for name, tensor in given.items():
            own[name].copy_(tensor)
    return sorted(set(own) - set(given))


def hugging_face_model(state: Mapping[str, Tensor], config: BertConfig) -> BertForPreTraining:
    """Return transformers' own model with these weights, the padding of the vocabulary cut off.

    Raises:
        CheckpointError: a weight is missing or of another shape.
    """
    cut = dict(own_names(state))
    for name in (_EMBEDDING, _BIAS):
        if name in cut:
            cut[name] = cut[name][: config.vocab_size]
    model = BertForPreTraining(config)
    own = {name: p for name, p in model.named_parameters() if name not in _TIED}
    with torch.no_grad():
        for name, p in own.items():
            if name not in cut or cut[name].shape != p.shape:
                have = list(cut[name].shape) if name in cut else "missing"
                raise CheckpointError(f"{name} is {have}, the configuration wants {list(p.shape)}")
            p.copy_(cut[name])
    return model.eval()


def _padded(tensor: Tensor, rows: int, *, bias: bool) -> Tensor:
    """Rows for words that do not exist: zero, and as unlikely as the least likely word."""
    more = rows - len(tensor)
    filler = tensor.min().expand(more) if bias else tensor.new_zeros(more, *tensor.shape[1:])
    return torch.cat([tensor, filler])


def _read_file(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} cannot be read", reason=str(error)) from error
    return read_upstream_checkpoint([path]).flat
