"""Small models in the shapes that capture has to cope with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x, y):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 2)
        out = self.bn2(self.conv2(x))
        out += x
        x = F.adaptive_avg_pool2d(F.relu_(out), 1).flatten(1)
        return F.cross_entropy(self.head(x), y)


class LanguageModel(nn.Module):
    """The word-language-model example of PyTorch: it keeps its causal mask in an attribute."""

    def __init__(self, vocab=20, width=16, heads=2, layers=2, dropout=0.2):
        super().__init__()
        self.src_mask = None
        self.width = width
        self.embedding = nn.Embedding(vocab, width)
        self.drop = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(width, heads, 32, dropout)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, vocab)

    def forward(self, src, targets):
        if self.src_mask is None or self.src_mask.size(0) != len(src):
            self.src_mask = nn.Transformer.generate_square_subsequent_mask(len(src))
        x = self.drop(self.embedding(src) * math.sqrt(self.width))
        logits = F.log_softmax(self.decoder(self.encoder(x, mask=self.src_mask)), dim=-1)
        return F.nll_loss(logits.view(-1, logits.shape[-1]), targets.reshape(-1)), logits


class Attending(nn.Module):
    def __init__(self, dropout=0.25):
        super().__init__()
        self.qkv, self.dropout = nn.Linear(8, 24), dropout

    def forward(self, x, mask=None):
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).split(8, dim=-1))
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return y.transpose(1, 2).flatten(2)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4, padding_idx=0)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.embedding(ids))


class Stack(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True) for _ in range(layers))

    def forward(self, x, padding):
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=padding)
        return x


@dataclass
class Answer:
    loss: torch.Tensor
    parts: dict[str, tuple[torch.Tensor, ...]]
    label: str
    missing: torch.Tensor | None = None


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, batch, *, scale=1.0, flag=None):
        y = self.linear(batch["x"]) * scale
        if flag == "twice":
            y = y * 2
        y = y + batch["more"][0] - batch["more"][1]
        return Answer(y.sum(), {"rows": (y, y.mean(1))}, "fine")


class BranchesOnData(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return x


class WithoutTranslation(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.linalg.ldl_factor(self.linear(x)).LD


class CountsCalls(nn.Module):
    """State of every kind that a forward may leave behind."""

    def __init__(self):
        super().__init__()
        self.bn, self.linear = nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))
        self.calls, self.seen, self.log = 0, None, []
        self.cache = {}

    def forward(self, x):
        self.calls += 1
        self.seen = x.mean()
        self.log.append(self.seen)
        self.cache["last"] = x
        with torch.no_grad():
            self.total.mul_(0.9).add_(x.sum(0))
        return F.dropout(self.bn(self.linear(x)), 0.5, self.training) + self.total
