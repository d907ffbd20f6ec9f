"""A trained BERT as an ONNX file of standard operators, its inputs named as the recipe names them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForPreTraining

from ontrain.capture import capture
from ontrain.session.export import inference_model, save_model
from pretraining.weights import hugging_face_model

__all__ = ["INPUTS", "OUTPUTS", "save_onnx"]

INPUTS = ("input_ids", "segment_ids", "input_mask")
OUTPUTS = ("prediction_scores", "seq_relationship_score")


class _Heads(nn.Module):
    """Both heads' scores: [B, L, vocabulary] and [B, 2]."""

    def __init__(self, bert: BertForPreTraining) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, segment_ids: Tensor, input_mask: Tensor) -> tuple[Tensor, Tensor]:
        out = self.bert(input_ids, attention_mask=input_mask, token_type_ids=segment_ids)
        return out.prediction_logits, out.seq_relationship_logits


def save_onnx(state: Mapping[str, Tensor], config: BertConfig, path: Path) -> None:
    """Write the model with these weights; batch and length may vary, the vocabulary has its true size.

    The file appears under its name when it is complete.

    Raises:
        CaptureError: the model cannot be captured.
        OptionError: the path cannot be written.
    """
    model = _Heads(hugging_face_model({name: tensor.cpu() for name, tensor in state.items()}, config))
    samples = tuple(torch.ones(2, 8, dtype=torch.int64) for _ in INPUTS)
    dims = {0: "batch", 1: "length"}
    captured = capture(
        model, samples, dynamic=[dims] * len(INPUTS), input_names=list(INPUTS), output_names=list(OUTPUTS)
    )
    tensors = {**captured.parameters, **captured.buffers}
    arrays = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    save_model(inference_model(captured.model, arrays, list(OUTPUTS)), os.fspath(path))
