"""nn.LSTM, nn.GRU and nn.RNN become one node a layer, over sizes that vary, with eager PyTorch's gradients."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from ontrain.capture import capture, program
from ontrain.training import optim
from tests.capture.harness import nodes, operators
from tests.training.conftest import make_trainer, token_loss
from tests.training.ortmodule.networks import assert_same_gradients, pair

pytestmark = pytest.mark.sampled(4)

DOUBLE = dict(rtol=1e-9, atol=1e-11)
RELU = {"nonlinearity": "relu"}
DEEP = {"num_layers": 2, "bidirectional": True}
VARIANTS = {
    "lstm": (nn.LSTM, {}),
    "lstm_from_states": (nn.LSTM, {}),
    "lstm_batch_first": (nn.LSTM, {"batch_first": True, "bidirectional": True}),
    "lstm_without_bias": (nn.LSTM, {"bias": False, "num_layers": 2}),
    "lstm_deep": (nn.LSTM, DEEP),
    "lstm_deep_from_states": (nn.LSTM, {**DEEP, "batch_first": True}),
    "gru": (nn.GRU, {"num_layers": 2}),
    "gru_from_states": (nn.GRU, {"bias": False}),
    "gru_deep_from_states": (nn.GRU, {**DEEP, "batch_first": True}),
    "rnn": (nn.RNN, {"num_layers": 2}),
    "rnn_deep_from_states": (nn.RNN, {**DEEP, **RELU, "batch_first": True}),
    "rnn_without_bias": (nn.RNN, {**RELU, "bias": False, "bidirectional": True}),
}
VARYING = [{0: "length", 1: "batch"}]


class Scored(nn.Module):
    """One number of all that a layer returns."""

    def __init__(self, recurrent):
        super().__init__()
        self.recurrent = recurrent

    def forward(self, x, *state):
        y, last = self.recurrent(x, *state)
        last = last if isinstance(last, tuple) else (last,)
        return y.square().sum() + sum((i + 2) * state.sin().sum() for i, state in enumerate(last))


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def call(recurrent, length, batch, from_states):
    """Arguments of a call, and the tensors among them."""
    x = draw(batch, length, 3) if recurrent.batch_first else draw(length, batch, 3)
    if not from_states:
        return (x,), [x]
    rows = recurrent.num_layers * (2 if recurrent.bidirectional else 1)
    states = [draw(rows, batch, 4) for _ in range(2 if isinstance(recurrent, nn.LSTM) else 1)]
    return (x, tuple(states) if len(states) > 1 else states[0]), [x, *states]


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_eagers_for_each_length_and_batch_of_one_capture(variant):
    kind, options = VARIANTS[variant]
    ours, eager = pair(Scored(kind(3, 4, **options).double()))
    for length, batch in [(3, 2), (2, 3)]:
        arguments, tensors = call(ours.recurrent, length, batch, variant.endswith("states"))
        results = []
        for module in (ours, eager):
            module.zero_grad()
            loss = module(*arguments)
            results.append((loss.detach(), *torch.autograd.grad(loss, tensors)))
            module(*arguments).backward()
        torch.testing.assert_close(*results, **DOUBLE)
        assert_same_gradients(ours, eager, **DOUBLE)
    assert ours._engine.captures == 1


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_each_layer_is_one_node_without_a_state_that_is_zero(kind):
    captured = capture(kind(3, 4, 2, bidirectional=True), (torch.randn(5, 2, 3),), dynamic=VARYING)
    layers = nodes(captured, kind.__name__)
    assert len(layers) == 2
    assert [list(map(str, node.outputs[0].shape)) for node in layers] == [["length", "2", "batch", "4"]] * 2
    assert all(state is None for node in layers for state in [*node.inputs, None][5:])
    assert "Expand" not in operators(captured)


def test_a_state_that_forward_writes_to_is_not_taken_for_zeros():
    class Started(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = nn.GRU(3, 4)

        def forward(self, x):
            state = x.new_zeros(1, x.shape[1], 4)
            state[0] = 0.5
            return self.recurrent(x, state)[0]

    ours, eager = pair(Started().double())
    x = draw(3, 2, 3)
    torch.testing.assert_close(ours(x), eager(x), **DOUBLE)


def test_dropout_between_layers_drops_its_share_and_scales_the_rest():
    recurrent = nn.RNN(40, 40, 2, dropout=0.3, bias=False, nonlinearity="relu")
    with torch.no_grad():
        for name, weight in recurrent.named_parameters():
            weight.copy_(torch.eye(40) if "_ih_" in name else torch.zeros(40, 40))
    ours, _ = pair(recurrent)
    # Both layers hand on what is positive, so that what is left is the dropout between them.
    x = (torch.rand(3, 300, 40) + 0.5).requires_grad_()
    y, _ = ours(x)
    y.sum().backward()
    np.testing.assert_allclose(np.unique((y / x).detach().numpy().round(4)), [0, 1.4286])
    assert abs((y == 0).float().mean().item() - 0.3) < 0.01
    torch.testing.assert_close(x.grad, (y / x).detach())
    assert not torch.equal(ours(x)[0], y)
    ours.eval()
    torch.testing.assert_close(ours(x)[0], x)


def test_a_projection_is_captured_anew_for_each_length():
    ours, eager = pair(Scored(nn.LSTM(3, 5, proj_size=2, bidirectional=True).double()))
    for length in (3, 2, 3):
        x = draw(length, 2, 3)
        for module in (ours, eager):
            module.zero_grad()
            module(x).backward()
        assert_same_gradients(ours, eager, **DOUBLE)
    assert ours._engine.captures == 2


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        return self.head(self.recurrent(x)[0])


def test_a_trainer_takes_any_batch_and_length_and_exports_for_any(tmp_path):
    model = Tagger()
    eager = copy.deepcopy(model)
    description = {
        "inputs": [("x", ["batch", "time", 8]), ("label", ["batch", "time"])],
        "outputs": [("loss", [], True), ("logits", ["batch", "time", 5])],
    }
    trainer = make_trainer(model, optim.SGDConfig(lr=0.5), description, token_loss)
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.5)
    for batch, length in [(2, 4), (3, 2), (2, 4), (4, 3)]:
        x, label = torch.randn(batch, length, 8), torch.randint(0, 5, (batch, length))
        optimizer.zero_grad()
        expected = token_loss(eager(x), label)
        expected.backward()
        nn.utils.clip_grad_norm_(eager.parameters(), 1.0)
        optimizer.step()
        loss, _ = trainer.train_step(x, label)
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-6)
    file = tmp_path / "tagger.onnx"
    trainer.save_as_onnx(file)
    assert [node.op_type for node in onnx.load(file).graph.node].count("LSTM") == 2
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for batch, length in [(1, 1), (3, 40)]:
        x = torch.randn(batch, length, 8)
        (output,) = session.run(None, {"x": x.numpy()})
        np.testing.assert_allclose(output, eager(x).detach().numpy(), rtol=1e-4, atol=1e-5)


class Steps(nn.Module):
    """A cell called in a loop over x [B, T, 3]."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return torch.cat(state, 1) if isinstance(state, tuple) else state


CELLS = {
    "LSTM": lambda: nn.LSTMCell(3, 4), "LSTM without biases": lambda: nn.LSTMCell(3, 4, bias=False),
    "GRU": lambda: nn.GRUCell(3, 4), "GRU without biases": lambda: nn.GRUCell(3, 4, bias=False),
    "tanh": lambda: nn.RNNCell(3, 4), "relu": lambda: nn.RNNCell(3, 4, bias=False, nonlinearity="relu"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CELLS)
def test_cells_in_a_loop_have_eagers_gradients_and_no_program_taken_apart(kind, monkeypatch):
    apart = []
    own = program.decomposed
    monkeypatch.setattr(program, "decomposed", lambda exported: apart.append(1) or own(exported))
    ours, eager = pair(Steps(CELLS[kind]()).double())
    for batch in (2, 3):
        x = draw(batch, 5, 3)
        leaves = [x.detach().clone().requires_grad_() for _ in range(2)]
        results = []
        for module, leaf in zip((ours, eager), leaves, strict=True):
            module.zero_grad()
            y = module(leaf)
            y.square().sum().backward()
            results.append((y.detach(), leaf.grad))
        torch.testing.assert_close(*results, **DOUBLE)
        assert_same_gradients(ours, eager, **DOUBLE)
    assert not apart and ours._engine.captures == 1


@pytest.mark.parametrize("kind", CELLS)
def test_cells_round_under_autocast_as_eager_pytorch_does(kind):
    ours, eager = pair(Steps(CELLS[kind]()))
    x = draw(2, 5, 3).float()
    results = []
    for module in (ours, eager):
        with torch.autocast("cpu", torch.bfloat16):
            y = module(x)
        y.float().square().sum().backward()
        results.append(y.detach())
    assert results[0].dtype == results[1].dtype
    torch.testing.assert_close(*results, rtol=2e-2, atol=2e-2)
