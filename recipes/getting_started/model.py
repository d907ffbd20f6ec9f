"""The model of the PyTorch tutorial "Language Modeling with nn.Transformer": embedding, positions, encoder, decoder."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class PositionalEncoding(nn.Module):
    """Adds sines and cosines of the position, of wavelengths from 2π to 10000·2π, then drops out.

    Attention Is All You Need, section 3.5.
    """

    pe: Tensor

    def __init__(self, d_model: int, dropout: float = 0.1, max_len: int = 5000) -> None:
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x_TBD: Tensor) -> Tensor:
        return self.dropout(x_TBD + self.pe[: x_TBD.size(0)])


class TransformerModel(nn.Module):
    """A word-level language model.

    Layouts: T positions, B sequences, D features, V words of the vocabulary.

    Args:
        ntoken: V, words in the vocabulary.
        ninp: D, width of the embedding and of the residual stream.
        nhead: attention heads; D / nhead features each.
        nhid: width of the feed-forward layers.
        nlayers: encoder layers.
        dropout: probability, after the positions and inside the layers.
    """

    def __init__(self, ntoken: int, ninp: int, nhead: int, nhid: int, nlayers: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.ninp = ninp
        self.encoder = nn.Embedding(ntoken, ninp)
        self.pos_encoder = PositionalEncoding(ninp, dropout)
        layer = nn.TransformerEncoderLayer(ninp, nhead, nhid, dropout)
        self.transformer_encoder = nn.TransformerEncoder(layer, nlayers, enable_nested_tensor=False)
        self.decoder = nn.Linear(ninp, ntoken)
        self.init_weights()

    def init_weights(self) -> None:
        initrange = 0.1
        nn.init.uniform_(self.encoder.weight, -initrange, initrange)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -initrange, initrange)

    def forward(self, src: Tensor) -> Tensor:
        """Return logits_TBV for src_TB, int64; position t sees positions 0..t."""
        mask_TT = nn.Transformer.generate_square_subsequent_mask(src.size(0), device=src.device)
        x_TBD = self.pos_encoder(self.encoder(src) * math.sqrt(self.ninp))
        # The hint spares a look at the mask's values, which a captured graph could not branch on.
        x_TBD = self.transformer_encoder(x_TBD, mask_TT, is_causal=True)
        logits_TBV: Tensor = self.decoder(x_TBD)
        return logits_TBV
