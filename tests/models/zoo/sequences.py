"""Recurrent networks, transformers of torch.nn and other models of sequences."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.models.zoo.entry import Batch, Entry

__all__ = ["ENTRIES"]

VOCAB = 20


def words(batch: int, length: int) -> Batch:
    return {"ids": torch.randint(0, VOCAB, (batch, length))}


def tagged(batch: int, length: int) -> Batch:
    labels = torch.randint(0, 4, (batch, length))
    labels[0, -2:] = -100
    return {"ids": torch.randint(0, VOCAB, (batch, length)), "label": labels}


def padded(batch: int, length: int) -> Batch:
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[0, -2:] = True
    return {**tagged(batch, length), "padding": padding}


def translated(batch: int, length: int) -> Batch:
    return {"source": torch.randint(0, VOCAB, (batch, length)), "target": torch.randint(0, VOCAB, (batch, length - 1))}


class LanguageModel(nn.Module):
    """A recurrent language model whose head is tied to its embedding."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 12)
        self.recurrent = kind(12, 12, batch_first=True, **options)
        self.head = nn.Linear(12, VOCAB)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        y, _ = self.recurrent(self.embedding(ids[:, :-1]))
        return F.cross_entropy(self.head(y).flatten(0, 1), ids[:, 1:].flatten())


class Tagger(nn.Module):
    """A bidirectional recurrent tagger."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 8, padding_idx=0)
        self.recurrent = kind(8, 6, bidirectional=True, batch_first=True, **options)
        self.head = nn.Linear(12, 4)

    def forward(self, ids: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        y, _ = self.recurrent(self.embedding(ids))
        return F.cross_entropy(self.head(y).transpose(1, 2), label, ignore_index=-100)


class ByCells(nn.Module):
    """A recurrent cell called in a Python loop of fixed length, its last state classified."""

    def __init__(self, kind: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell, self.head = kind(6, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        state: Any = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        hidden = state[0] if isinstance(state, tuple) else state
        return F.cross_entropy(self.head(hidden), label)


class Translator(nn.Module):
    """A GRU encoder and decoder with additive attention: Bahdanau et al. 2015."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(VOCAB, 8), nn.Embedding(VOCAB, 8)
        self.encoder, self.decoder = nn.GRU(8, 8, batch_first=True), nn.GRU(8, 8, batch_first=True)
        self.key, self.query, self.score = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 1)
        self.head = nn.Linear(16, VOCAB)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory, last = self.encoder(self.source(source))
        y, _ = self.decoder(self.target(target[:, :-1]), last)
        scores = self.score(torch.tanh(self.query(y).unsqueeze(2) + self.key(memory).unsqueeze(1))).squeeze(-1)
        context = torch.bmm(scores.softmax(-1), memory)
        return F.cross_entropy(self.head(torch.cat([y, context], -1)).flatten(0, 1), target[:, 1:].flatten())


class Encoder(nn.Module):
    """nn.TransformerEncoder with padding and a causal mask."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 12)
        layer = nn.TransformerEncoderLayer(12, 2, 20, 0.0, "gelu", batch_first=True, norm_first=norm_first)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(12, 4)

    def forward(self, ids: torch.Tensor, label: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        causal = torch.triu(torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device), 1)
        y = self.encoder(self.embedding(ids), causal, padding)
        return F.cross_entropy(self.head(y).transpose(1, 2), label)


class Transformer(nn.Module):
    """nn.Transformer, sequence first, with sinusoidal positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCAB, 8), nn.Linear(8, VOCAB)
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0)

    def placed(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) * math.sqrt(8)
        at = torch.arange(ids.shape[1], device=ids.device, dtype=x.dtype).unsqueeze(1)
        rate = torch.exp(torch.arange(0, 8, 2, dtype=x.dtype, device=x.device) * (-math.log(10000.0) / 8))
        return (x + torch.stack([torch.sin(at * rate), torch.cos(at * rate)], -1).flatten(1)).transpose(0, 1)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = self.placed(target[:, :-1])
        causal = nn.Transformer.generate_square_subsequent_mask(y.shape[0], y.device, y.dtype)
        y = self.transformer(self.placed(source), y, tgt_mask=causal)
        return F.cross_entropy(self.head(y).permute(1, 2, 0), target[:, 1:])


class Pooled(nn.Module):
    """nn.MultiheadAttention whose averaged weights are part of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(VOCAB, 8), nn.MultiheadAttention(8, 2, add_bias_kv=True)
        self.query, self.head = nn.Parameter(torch.randn(3, 1, 8)), nn.Linear(24, 2)

    def forward(self, ids: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids).transpose(0, 1)
        y, weights = self.attention(self.query.expand(3, x.shape[1], 8), x, x)
        entropy = -(weights * torch.log(weights + 1e-9)).sum(-1).mean()
        return F.cross_entropy(self.head(y.transpose(0, 1).flatten(1)), label) + 0.1 * entropy


class Linear(nn.Module):
    """Linear attention with cumulative sums over the sequence: Katharopoulos et al. 2020."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.qkv, self.head = nn.Embedding(VOCAB, 8), nn.Linear(8, 24), nn.Linear(8, VOCAB)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.embedding(ids[:, :-1])).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        sums = torch.cumsum(k.unsqueeze(-1) * v.unsqueeze(-2), 1)
        y = torch.einsum("bld,blde->ble", q, sums) / (q * torch.cumsum(k, 1)).sum(-1, keepdim=True)
        return F.cross_entropy(self.head(y).flatten(0, 1), ids[:, 1:].flatten())


class Mixer(nn.Module):
    """MLP-Mixer on patches: Tolstikhin et al. 2021."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.norm1, self.norm2, self.norm = nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8)
        self.tokens = nn.Sequential(nn.Linear(16, 12), nn.GELU(), nn.Linear(12, 16))
        self.channels = nn.Sequential(nn.Linear(8, 12), nn.GELU("tanh"), nn.Linear(12, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = y + self.tokens(self.norm1(y).transpose(1, 2)).transpose(1, 2)
        y = y + self.channels(self.norm2(y))
        return F.cross_entropy(self.head(self.norm(y).mean(1)), label)


class StateSpace(nn.Module):
    """A diagonal state space layer as one convolution with a kernel made from its parameters: Gu et al. 2022."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCAB, 6), nn.Linear(6, VOCAB)
        self.log_a, self.b, self.c = (nn.Parameter(torch.rand(6, 4)) for _ in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids[:, :-1]).transpose(1, 2)
        at = torch.arange(x.shape[-1], dtype=x.dtype, device=x.device)
        kernel = ((self.b * self.c).unsqueeze(-1) * torch.exp(-F.softplus(self.log_a).unsqueeze(-1) * at)).sum(1)
        y = F.conv1d(F.pad(x, (x.shape[-1] - 1, 0)), kernel.flip(-1).unsqueeze(1), groups=6)
        return F.cross_entropy(self.head(F.silu(y).transpose(1, 2)).flatten(0, 1), ids[:, 1:].flatten())


class Speech(nn.Module):
    """A recurrent acoustic model under the CTC loss."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        y = self.head(self.encoder(x)[0]).log_softmax(-1).transpose(0, 1)
        full = torch.full((x.shape[0],), x.shape[1], dtype=torch.long)
        size = torch.full((x.shape[0],), label.shape[1], dtype=torch.long)
        return F.ctc_loss(y, label, full, size)


class Packed(nn.Module):
    """An LSTM over rows of their own lengths, by pack_padded_sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.recurrent, self.head = (
            nn.Embedding(VOCAB, 6),
            nn.LSTM(6, 6, batch_first=True),
            nn.Linear(6, 2),
        )

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x, lengths = self.embedding(ids), lengths.cpu()
        rows = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.recurrent(rows)
        return F.cross_entropy(self.head(hidden[-1]), label)


def _entry(name: str, make: Any, batch: Any, family: str = "recurrent", **more: Any) -> Entry:
    return Entry(name, family, make, batch, **more)


def _steps(batch: int, _: int) -> Batch:
    return {"x": torch.randn(batch, 5, 6), "label": torch.randint(0, 4, (batch,))}


def _sentences(batch: int, length: int) -> Batch:
    return {**words(batch, length), "label": torch.randint(0, 2, (batch,))}


ENTRIES = [
    _entry("LSTM language model", lambda: LanguageModel(nn.LSTM, num_layers=2), words),
    _entry("GRU language model", lambda: LanguageModel(nn.GRU), words),
    _entry("RNN language model", lambda: LanguageModel(nn.RNN, nonlinearity="relu"), words),
    _entry("LSTM tagger, both directions", lambda: Tagger(nn.LSTM, num_layers=2), tagged),
    _entry("GRU tagger, both directions", lambda: Tagger(nn.GRU), tagged),
    _entry("LSTMCell in a loop", lambda: ByCells(nn.LSTMCell), _steps),
    _entry("GRUCell in a loop", lambda: ByCells(nn.GRUCell), _steps),
    _entry("GRU translator with attention", Translator, translated),
    _entry(
        "LSTM on packed rows",
        Packed,
        lambda n, t: {**_sentences(n, t), "lengths": torch.randint(1, t, (n,))},
        refused="depends on",
        way_out="ORTModule",
    ),
    _entry(
        "GRU under CTC",
        Speech,
        lambda n, t: {"x": torch.randn(n, 2 * t, 4), "label": torch.randint(1, 6, (n, t // 2))},
    ),
    _entry("nn.TransformerEncoder", lambda: Encoder(False), padded, "transformer"),
    _entry("nn.TransformerEncoder, norm first", lambda: Encoder(True), padded, "transformer"),
    _entry("nn.Transformer", Transformer, translated, "transformer"),
    _entry("nn.MultiheadAttention", Pooled, _sentences, "transformer"),
    _entry("linear attention", Linear, words, "transformer"),
    _entry(
        "MLP-Mixer",
        Mixer,
        lambda n, _: {"x": torch.randn(n, 3, 16, 16), "label": torch.randint(0, 5, (n,))},
        "transformer",
    ),
    _entry("S4D", StateSpace, words, "state space"),
]
