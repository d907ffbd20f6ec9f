"""Encoders of text in files as torch writes them, batches of sequences of several lengths, and plans that ran."""

from __future__ import annotations

import io
import warnings

import numpy as np
import onnxruntime
import torch
import transformers
from torch import nn

import ontrain

NAMES = ("input_ids", "attention_mask", "token_type_ids")
SEQUENCES, LENGTH = 8, 32
LENGTHS = np.array([32, 5, 9, 3, 17, 1, 6, 8])


class Encoder(nn.Module):
    """BERT with random weights. It gives states and the pooled first token, their mean over the tokens that are there
    (MiniLM's embedding of a sentence), or the scores of question answering."""

    def __init__(self, result: str = "states", attention: str = "eager"):
        super().__init__()
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=100, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512,
            max_position_embeddings=64, attn_implementation=attention,
        )  # fmt: skip
        self.bert, self.head, self.result = transformers.BertModel(config), nn.Linear(128, 2), result
        for norm in self.modules():
            if isinstance(norm, nn.LayerNorm):  # at their beginnings they would not be told apart
                nn.init.normal_(norm.weight, 1.0, 0.2)
                nn.init.normal_(norm.bias, 0.0, 0.2)

    def forward(self, input_ids, attention_mask, token_type_ids):
        whole = self.bert(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        states = whole.last_hidden_state
        if self.result == "states":
            return states, whole.pooler_output
        if self.result == "scores":
            return self.head(states)
        weight = attention_mask.unsqueeze(-1).expand(states.shape).to(states.dtype)
        mean = (states * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=1)


def file_of(module: nn.Module, outputs: list[str], opset: int = 17) -> bytes:
    """The file that torch's exporter makes of an encoder; sequences and their length vary."""
    axes = {name: {0: "batch", 1: "length"} for name in (*NAMES, *outputs)}
    target = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), tuple(map(torch.from_numpy, batch().values())), target, dynamo=False, opset_version=opset,
            input_names=list(NAMES), output_names=outputs, dynamic_axes=axes,
        )  # fmt: skip
    return target.getvalue()


def batch(lengths=LENGTHS, length: int = LENGTH, seed: int = 0) -> dict[str, np.ndarray]:
    """Tokens, padded behind: what stands in the padding differs from place to place."""
    ids = np.random.default_rng(seed).integers(1, 100, (len(lengths), length))
    mask = (np.arange(length)[None] < np.asarray(lengths)[:, None]).astype(np.int64)
    return dict(zip(NAMES, (ids, mask, np.zeros_like(ids)), strict=True))


def stock(model: bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)


def session(model: bytes, **options: str) -> ontrain.InferenceSession:
    return ontrain.InferenceSession(model, providers=[("TorchExecutionProvider", options)])


def rows_multiplied(of: ontrain.InferenceSession) -> list[set[int]]:
    """For each plan the numbers of rows in its products with a matrix that has a bias."""
    plans = of._own._session._planner.plans.values()
    return [{n.inputs[0].shape[0] for n in plan.model.graph if n.op_type in ("Gemm", "Linear")} for plan in plans]
