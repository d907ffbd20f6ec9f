"""Recurrent networks: layers, packed sequences, states that are handed on, and cells in loops."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence

from tests.drawn.draw import Draw
from tests.drawn.modules.module import Applied, Sample, sample

FEATURES, WIDTH = 3, 4
KINDS = ["LSTM", "GRU", "RNN"]


def _layer(draw: Draw, **fixed: Any) -> nn.Module:
    """A layer with drawn settings."""
    kind = draw.choice(KINDS)
    settings = dict(
        num_layers=draw.choice([1, 1, 2, 3]), bias=draw.flag(0.8), batch_first=draw.flag(), bidirectional=draw.flag(),
        dropout=0.0,
    )  # fmt: skip
    if kind == "LSTM":
        settings["proj_size"] = draw.choice([0, 0, 2])
    if kind == "RNN":
        settings["nonlinearity"] = draw.choice(["tanh", "relu"])
    return getattr(nn, kind)(FEATURES, WIDTH, **settings | fixed)


def _sequences(draw: Draw, layer: nn.Module) -> torch.Tensor:
    batch, length = draw.integer(1, 4), draw.integer(2, 5)
    return draw.tensor(*((batch, length) if layer.batch_first else (length, batch)), FEATURES)


def _states(draw: Draw, layer: nn.Module, *batch: int) -> list[torch.Tensor]:
    """First states: one, or two of an LSTM."""
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    first = draw.tensor(rows, *batch, layer.proj_size or WIDTH)
    return [first, draw.tensor(rows, *batch, WIDTH)] if isinstance(layer, nn.LSTM) else [first]


def _together(states: Any) -> Any:
    """States as a layer takes them."""
    return tuple(states) if len(states) == 2 else states[0]


@sample
def recurrence(draw: Draw) -> Sample:
    """Outputs and last states of a layer."""
    layer = _layer(draw)
    return Sample(str(layer), layer, lambda: [_sequences(draw, layer)])


@sample
def first_states(draw: Draw) -> Sample:
    """A layer that begins with given states, with a batch or without."""
    layer, batched = _layer(draw), draw.flag(0.7)

    def inputs() -> list[torch.Tensor]:
        if not batched:
            return [draw.tensor(draw.integer(2, 5), FEATURES), *_states(draw, layer)]
        x = _sequences(draw, layer)
        return [x, *_states(draw, layer, x.shape[0 if layer.batch_first else 1])]

    return Sample(f"{layer} batched={batched}", Applied(lambda m, x, *s: m(x, _together(s)), layer), inputs)


def _lengths(draw: Draw, layer: nn.Module, ordered: bool) -> list[torch.Tensor]:
    """Sequences and the number of rows that count in each; the longest one is whole."""
    x = _sequences(draw, layer)
    batch, length = x.shape[:2] if layer.batch_first else reversed(x.shape[:2])
    lengths = torch.tensor([length, *(draw.integer(1, length) for _ in range(batch - 1))])
    return [x, lengths.sort(descending=True)[0] if ordered else lengths.roll(draw.integer(0, batch - 1))]


@sample.share(2)
def packed(draw: Draw) -> Sample:
    """A packed sequence of random lengths, padded again."""
    layer, ordered, total = _layer(draw), draw.flag(0.4), draw.maybe(6)
    first, value = layer.batch_first, draw.choice([0.0, 1.5])

    def function(m: nn.Module, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        outputs, states = m(pack_padded_sequence(x, lengths, first, enforce_sorted=ordered))
        rows, _ = pad_packed_sequence(outputs, first, value, total)
        return rows, states

    text = f"{layer} ordered={ordered} total={total} value={value}"
    return Sample(text, Applied(function, layer), lambda: _lengths(draw, layer, ordered))


@sample
def packed_twice(draw: Draw) -> Sample:
    """Two layers on a packed sequence, and a linear one on its rows."""
    first = nn.LSTM(FEATURES, WIDTH, bidirectional=True)
    second, linear = nn.GRU(2 * WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, 2)

    def function(a: nn.Module, b: nn.Module, c: nn.Module, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        outputs, states = b(a(pack_padded_sequence(x, lengths, enforce_sorted=False))[0])
        return c(outputs.data), states, pad_packed_sequence(outputs)[0]

    return Sample("LSTM GRU linear", Applied(function, first, second, linear), lambda: _lengths(draw, first, False))


@sample
def packed_list(draw: Draw) -> Sample:
    """pack_sequence and pad_sequence of tensors of different lengths."""
    layer = _layer(draw)

    def function(m: nn.Module, *sequences: torch.Tensor) -> Any:
        outputs, states = m(pack_sequence(sequences, enforce_sorted=False))
        return pad_packed_sequence(outputs, layer.batch_first)[0], states, pad_sequence(sequences, padding_value=-1.0)

    return Sample(
        str(layer), Applied(function, layer), lambda: [draw.tensor(draw.integer(1, 5), FEATURES) for _ in range(3)]
    )


@sample
def handed_on(draw: Draw) -> Sample:
    """A sequence in two parts; the second begins with the first one's states, detached or not."""
    layer, detached = _layer(draw), draw.flag()

    def function(m: nn.Module, x: torch.Tensor) -> Any:
        first, second = x.tensor_split(2, 1 if m.batch_first else 0)
        outputs, states = m(first)
        if detached:
            states = tuple(s.detach() for s in states) if isinstance(states, tuple) else states.detach()
        return outputs, m(second, states)

    return Sample(f"{layer} detached={detached}", Applied(function, layer), lambda: [_sequences(draw, layer)])


@sample
def cell(draw: Draw) -> Sample:
    """A cell in a loop, forwards or backwards, whose states are stacked."""
    kind, backwards = draw.choice(KINDS), draw.flag()
    layer, masked = getattr(nn, f"{kind}Cell")(FEATURES, WIDTH, bias=draw.flag()), draw.flag()

    def function(m: nn.Module, x: torch.Tensor) -> Any:
        states, outputs = None, []
        for row in x.flip(0) if backwards else x:
            states = m(row, states)
            hidden = states[0] if kind == "LSTM" else states
            outputs.append(hidden.masked_fill(row[:, :1] > 1, 0.0) if masked else hidden)
        return torch.stack(outputs), states

    text = f"{layer} backwards={backwards} masked={masked}"
    return Sample(text, Applied(function, layer), lambda: [draw.tensor(*draw.sizes(2, 1, 4), FEATURES)])


@sample
def decoder(draw: Draw) -> Sample:
    """A recurrence's last states begin a cell that reads what it wrote."""
    encoder, reader, head = nn.GRU(FEATURES, WIDTH), nn.GRUCell(FEATURES, WIDTH), nn.Linear(WIDTH, FEATURES)
    steps = draw.integer(1, 4)

    def function(a: nn.Module, b: nn.Module, c: nn.Module, x: torch.Tensor) -> torch.Tensor:
        hidden, row, rows = a(x)[1][0], x[-1], []
        for _ in range(steps):
            hidden = b(row, hidden)
            row = c(hidden)
            rows.append(row)
        return torch.stack(rows, 1)

    module = Applied(function, encoder, reader, head)
    return Sample(f"GRU GRUCell {steps}", module, lambda: [draw.tensor(*draw.sizes(2, 1, 4), FEATURES)])
