"""Packed sequences train as eager PyTorch's: recurrent layers over rows of their own lengths, padded and unpadded."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

from ontrain.capture import capture
from ontrain.errors import CaptureError
from tests.capture.harness import nodes
from tests.training.ortmodule.networks import assert_same_gradients, pair

DOUBLE = dict(rtol=1e-9, atol=1e-11)
DEEP = {"num_layers": 2, "bidirectional": True}
BATCHES = [(5, [5, 3, 2]), (6, [4, 4, 2, 1]), (5, [5, 1, 1])]
"""How many steps, and the lengths of the sequences."""


class Packed(nn.Module):
    """One number of all that a layer makes of packed rows; `read(module, rows, x)` is what the outputs add."""

    def __init__(self, recurrent, read, enforce_sorted=False):
        super().__init__()
        self.recurrent, self.read, self.sorted = recurrent, read, enforce_sorted
        self.embed = nn.Linear(3, 3)

    def forward(self, x, lengths, *state):
        rows = rnn.pack_padded_sequence(
            self.embed(x), lengths, batch_first=self.recurrent.batch_first, enforce_sorted=self.sorted
        )
        hx = None if not state else state[0] if len(state) == 1 else state
        y, last = self.recurrent(rows, hx)
        last = last if isinstance(last, tuple) else (last,)
        loss = sum((i + 2) * h.sin().mul(weights(h)).sum() for i, h in enumerate(last))
        return loss + self.read(self, y, x)


def weights(x):
    """Another number for each place of x, so that none can stand for another."""
    return torch.arange(x[0].numel()).view(x.shape[1:]).to(x.dtype).cos() + 1.5


def scored(y, lengths):
    return (y.square() * weights(y)).sum() + (y.sum((1, 2)) * lengths).sum()


def nothing(module, rows, x):
    return 0.0


def of_rows(module, rows, x):
    return (rows.data.square() * weights(rows.data)).mean()


def padded(module, rows, x):
    y, lengths = rnn.pad_packed_sequence(rows, batch_first=True)
    return scored(y, lengths) + y.shape[1]


def padded_in_full(module, rows, x):
    first = module.recurrent.batch_first
    y, lengths = rnn.pad_packed_sequence(rows, first, padding_value=0.5, total_length=x.shape[1 if first else 0])
    return scored(y if first else y.transpose(0, 1), lengths)


def padded_further(module, rows, x):
    y, lengths = rnn.pad_packed_sequence(rows, batch_first=True, padding_value=-1.0, total_length=9)
    return scored(y, lengths)


def embedded_again(module, rows, x):
    """The module computes on packed rows, and runs the layer over what comes of them."""
    data = module.embed(rows.data[:, :3])
    again, _ = module.recurrent(rnn.PackedSequence(data, *rows[1:]))
    return of_rows(module, again, x) + padded(module, again, x)


VARIANTS = {
    "lstm": (nn.LSTM, {}, nothing),
    "lstm_rows": (nn.LSTM, {**DEEP, "batch_first": True}, of_rows),
    "lstm_padded": (nn.LSTM, {"batch_first": True}, padded),
    "lstm_deep_from_states": (nn.LSTM, DEEP, padded),
    "lstm_again": (nn.LSTM, {}, embedded_again),
    "gru": (nn.GRU, DEEP, nothing),
    "gru_in_full_from_states": (nn.GRU, {"batch_first": True, "bidirectional": True}, padded_in_full),
    "gru_again": (nn.GRU, {"batch_first": True, "num_layers": 2}, embedded_again),
    "rnn_in_full": (nn.RNN, {}, padded_in_full),
    "rnn_further": (nn.RNN, {"bidirectional": True, "nonlinearity": "relu"}, padded_further),
    "rnn_from_states": (nn.RNN, {"batch_first": True, "bias": False}, of_rows),
}


def batch_of(recurrent, steps, lengths, from_states):
    """The arguments of a call, and those among them that get gradients."""
    count = len(lengths)
    x = torch.randn((count, steps, 3) if recurrent.batch_first else (steps, count, 3), dtype=torch.float64)
    rows = recurrent.num_layers * (2 if recurrent.bidirectional else 1)
    kinds = (2 if isinstance(recurrent, nn.LSTM) else 1) if from_states else 0
    states = [torch.randn(rows, count, 4, dtype=torch.float64) for _ in range(kinds)]
    leaves = [leaf.requires_grad_() for leaf in (x, *states)]
    return (x, torch.tensor(lengths), *states), leaves


def assert_as_eager(ours, eager, arguments, leaves):
    losses, gradients = [], []
    for module in (ours, eager):
        module.zero_grad()
        loss = module(*arguments)
        gradients.append(torch.autograd.grad(loss, leaves))
        losses.append(loss.detach())
        module(*arguments).backward()
    torch.testing.assert_close(losses[0], losses[1], **DOUBLE)
    torch.testing.assert_close(gradients[0], gradients[1], **DOUBLE)
    assert_same_gradients(ours, eager, **DOUBLE)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_layers_over_packed_rows_are_eagers_for_all_lengths_of_one_capture(variant, enforce_sorted):
    kind, options, read = VARIANTS[variant]
    ours, eager = pair(Packed(kind(3, 4, **options), read, enforce_sorted).double())
    for steps, lengths in BATCHES:
        if not enforce_sorted:
            lengths = [lengths[i] for i in torch.randperm(len(lengths))]
        arguments, leaves = batch_of(eager.recurrent, steps, lengths, variant.endswith("states"))
        assert_as_eager(ours, eager, arguments, leaves)
    assert ours._engine.captures == 1


def test_lengths_may_be_a_list_of_numbers():
    ours, eager = pair(Packed(nn.GRU(3, 4), padded).double())
    for steps, lengths in BATCHES:
        (x, _), leaves = batch_of(eager.recurrent, steps, lengths, False)
        assert_as_eager(ours, eager, (x, lengths), leaves)


def test_a_layer_between_packing_and_padding_is_one_node_with_lengths():
    module = Packed(nn.LSTM(3, 4, batch_first=True), padded_in_full)
    captured = capture(module, (torch.randn(2, 5, 3), torch.tensor([2, 5])), sized_by_values=True, paths=True)
    (layer,) = nodes(captured, "LSTM")
    assert layer.inputs[4] is not None
    assert [str(size) for size in layer.inputs[0].shape] == ["5", "2", "3"]


def test_rows_that_forward_writes_to_are_laid_out_again():
    class Doubling(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = nn.GRU(3, 4)

        def forward(self, x, lengths):
            rows = rnn.pack_padded_sequence(x * 1, lengths)
            rows.data.mul_(2)
            y, last = self.recurrent(rows)
            return last.square().sum() + y.data.sum()

    ours, eager = pair(Doubling().double())
    for steps, lengths in BATCHES:
        arguments, leaves = batch_of(eager.recurrent, steps, lengths, False)
        assert_as_eager(ours, eager, arguments, leaves)


def test_a_packed_sequence_may_be_an_argument_and_a_result():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = nn.LSTM(3, 4, bidirectional=True)

        def forward(self, rows):
            return self.recurrent(rows)

    ours, eager = pair(Encoder().double())
    for _, lengths in BATCHES:
        for enforce_sorted in (True, False):
            sequences = [torch.randn(n, 3, dtype=torch.float64) for n in lengths]
            results = []
            for module in (ours, eager):
                module.zero_grad()
                rows, (h, c) = module(rnn.pack_sequence(sequences, enforce_sorted=enforce_sorted))
                assert isinstance(rows, rnn.PackedSequence)
                y, sizes = rnn.pad_packed_sequence(rows)
                (y.square().sum() + h.sin().sum() + c.cos().sum()).backward()
                results.append((y.detach(), sizes, h.detach(), c.detach()))
            torch.testing.assert_close(*results, **DOUBLE)
            assert_same_gradients(ours, eager, **DOUBLE)


class Padding(nn.Module):
    """Pads what it computes of sequences, takes it apart again by lengths, and packs it."""

    def __init__(self, side="right"):
        super().__init__()
        self.embed, self.recurrent, self.side = nn.Linear(3, 3), nn.GRU(3, 4), side

    def forward(self, *sequences):
        y = rnn.pad_sequence([self.embed(s) for s in sequences], batch_first=True, padding_value=0.5,
                             padding_side=self.side)  # fmt: skip
        lengths = torch.tensor([s.shape[0] for s in sequences])
        parts = rnn.unpad_sequence(y, lengths, batch_first=True)
        _, last = self.recurrent(rnn.pack_sequence(parts, enforce_sorted=False))
        return (y * weights(y)).square().sum() + sum(p.sin().sum() for p in parts) + last.sum() * y.shape[1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("side", ["right", "left"])
def test_sequences_are_padded_unpadded_and_packed_at_any_length(side):
    ours, eager = pair(Padding(side).double())
    for lengths in ([3, 5], [5, 4], [2, 6]):
        leaves = [torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in lengths]
        assert_as_eager(ours, eager, leaves, leaves)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [{}, {"batch_first": True, "bias": False, **DEEP}])
def test_a_projection_over_packed_rows_stays_where_a_sequence_ends(options):
    ours, eager = pair(Packed(nn.LSTM(3, 4, proj_size=2, **options), of_rows).double())
    for steps, lengths in BATCHES:
        arguments, leaves = batch_of(eager.recurrent, steps, lengths[::-1], False)
        assert_as_eager(ours, eager, arguments, leaves)


@pytest.mark.parametrize("lengths", [[2, 3, 5], [5, 2, 0], [6, 2, 1], [5, -1, 2]])
@pytest.mark.sampled(2)
def test_lengths_that_torch_refuses_are_refused_after_the_capture_too(lengths):
    ours, _ = pair(Packed(nn.LSTM(3, 4, batch_first=True), padded, enforce_sorted=True).double())
    x = torch.randn(3, 5, 3, dtype=torch.float64)
    with pytest.raises(CaptureError, match="lengths of a packed sequence"):
        ours(x, torch.tensor(lengths))
    ours(x, torch.tensor([5, 3, 2])).backward()
    with pytest.raises(CaptureError, match="at least 1 and at most 5"):
        ours(x, torch.tensor(lengths))
    ours(x, torch.tensor([4, 4, 1])).backward()
