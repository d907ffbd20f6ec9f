"""torch.cond becomes an If whose branches read the values around them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as mapped

from ontrain.capture import capture, validate
from ontrain.errors import CaptureError, OntrainError
from ontrain.graph import source_of
from ontrain.training import optim
from ontrain.training.ortmodule import ORTModule
from tests.capture.harness import nodes, operators
from tests.training.conftest import make_trainer
from tests.training.ortmodule.networks import assert_same_gradients, pair

pytestmark = pytest.mark.sampled(4)

DOUBLE = dict(rtol=1e-9, atol=1e-11)


class Routed(nn.Module):
    """One of two layers by the sign of the sum; both branches read a value and a parameter from around them."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        doubled = x * 2

        def positive(x):
            return self.left(x) + doubled * self.scale, x.mean(0)

        def negative(x):
            return torch.tanh(self.right(x)) - doubled, (x * self.scale).sum(0) / x.shape[0]

        y, row = torch.cond(x.sum() > 0, positive, negative, (x,))
        return y * self.scale + row


def test_outputs_and_gradients_are_eagers_whichever_branch_is_taken():
    ours, eager = pair(Routed().double())
    for sign in (1, -1):
        for batch in (2, 4):
            x = (sign * torch.rand(batch, 3, dtype=torch.float64)).requires_grad_()
            for module in (ours, eager):
                module.zero_grad()
            gradients = [torch.autograd.grad(module(x).square().sum(), x) for module in (ours, eager)]
            torch.testing.assert_close(*gradients, **DOUBLE)
            torch.testing.assert_close(ours(x), eager(x), **DOUBLE)
            for module in (ours, eager):
                module(x).square().sum().backward()
            for (name, mine), theirs in zip(ours.named_parameters(), eager.parameters(), strict=True):
                # The branch that is not taken gives zero here, and nothing in eager PyTorch.
                want = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
                torch.testing.assert_close(mine.grad, want, msg=lambda text, name=name: f"{name}: {text}", **DOUBLE)
    assert ours._engine.captures == 1


class Nested(nn.Module):
    """A branch that branches, on a size that varies and on what the outer branch computed."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        def inner(x):
            hidden = self.layer(x)
            return torch.cond(hidden.mean() > 0, lambda h: h.exp(), lambda h: h * x.shape[0], (hidden,))

        return torch.cond(x.sum() > 0, inner, lambda x: self.layer(x) - x.reshape(-1, 3).mean(), (x,))


def test_branches_in_branches():
    module = Nested().double()
    with torch.no_grad():
        module.layer.weight.copy_(torch.diag(torch.tensor([1.0, 1.0, -10.0])))
        module.layer.bias.zero_()
    ours, eager = pair(module)
    # Outer and inner condition: true and true, true and false, false.
    for row in ([1.0, 1.0, 0.1], [1.0, 1.0, 1.0], [-1.0, -2.0, -1.0]):
        for batch in (2, 3):
            x = torch.tensor([row] * batch, dtype=torch.float64)
            for variant in (ours, eager):
                variant.zero_grad()
                variant(x).square().sum().backward()
            torch.testing.assert_close(ours(x), eager(x), **DOUBLE)
            assert_same_gradients(ours, eager, **DOUBLE)
    assert ours._engine.captures == 1


def test_an_exported_branch_is_taken_in_stock_onnxruntime(tmp_path):
    description = {
        "inputs": [("x", ["batch", 3]), ("label", ["batch", 3])],
        "outputs": [("loss", [], True), ("y", ["batch", 3])],
    }
    model = Routed()
    trainer = make_trainer(model, optim.SGDConfig(lr=0.1), description, nn.functional.mse_loss)
    for sign in (1, -1):
        trainer.train_step(sign * torch.rand(4, 3), torch.rand(4, 3))
    file = tmp_path / "routed.onnx"
    trainer.save_as_onnx(file)
    assert "If" in {node.op_type for node in onnx.load(file).graph.node}
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for sign, batch in ((1, 2), (-1, 5)):
        x = sign * torch.rand(batch, 3)
        (result,) = session.run(None, {"x": x.numpy()})
        np.testing.assert_allclose(result, model(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_captured_branch_is_an_if_and_passes_validation():
    module = Routed()
    captured = capture(module, (torch.rand(2, 3),), dynamic=[{0: "batch"}])
    assert operators(captured)["If"] == 1
    assert "torch.cond(" in (source_of(nodes(captured, "If")[0]) or "")
    for sign in (1, -1):
        validate(captured, module, (sign * torch.rand(3, 3),))


def test_branches_on_a_size_are_chosen_when_the_plan_is_made():
    class Sized(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

        def forward(self, x):
            return torch.cond(x.shape[0] > 3, lambda x: x * self.weight, lambda x: x / self.weight, (x,))

    ours, eager = pair(Sized())
    for batch in (2, 5, 3, 4):
        x = torch.randn(batch, 2, dtype=torch.float64)
        torch.testing.assert_close(ours(x), eager(x), **DOUBLE)


@torch.library.custom_op("branches::unheard_of", mutates_args=())
def unheard_of(x: torch.Tensor) -> torch.Tensor:
    return x * 3


unheard_of.register_fake(torch.empty_like)


def test_a_branch_with_an_unknown_operator_is_refused_by_name():
    class Unknown(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: unheard_of(x)[0], lambda x: x[0] * 2, (x,))

    with pytest.raises(CaptureError, match=r"unheard_of"):
        capture(Unknown(), (torch.eye(3),))


class Halving(nn.Module):
    """Repeats a layer until its values are small: how often is data."""

    def __init__(self):
        super().__init__()
        self.layer, self.decay = nn.Linear(3, 3), nn.Parameter(torch.tensor(0.6))

    def forward(self, x):
        def go_on(count, h):
            return (h.abs().amax() > 0.5) & (count < 6)

        def step(count, h):
            return count + 1, torch.tanh(self.layer(h)) * self.decay

        count, h = torch.while_loop(go_on, step, (torch.zeros((), dtype=torch.int64), x))
        return h, count


def test_a_loop_runs_as_often_as_the_data_say_and_has_eagers_gradients():
    ours = ORTModule(Halving().double())
    module, counts = ours.module, set()
    for size in (0.1, 2.0, 2.0):
        for batch in (2, 3):
            x = (size * torch.randn(batch, 3, dtype=torch.float64)).requires_grad_()
            h, n = x, 0
            while h.abs().amax() > 0.5 and n < 6:
                h, n = torch.tanh(module.layer(h)) * module.decay, n + 1
            y, count = ours(x)
            assert int(count) == n
            torch.testing.assert_close(y, h, **DOUBLE)
            leaves = [x, *module.parameters()]
            mine = torch.autograd.grad(y.square().sum(), leaves)
            theirs = torch.autograd.grad(h.square().sum(), leaves, materialize_grads=True)
            torch.testing.assert_close(mine, theirs, **DOUBLE)
            counts.add(n)
    assert len(counts) > 1 and ours._engine.captures == 1


def test_a_map_is_refused_with_what_to_write_instead():
    class Mapped(nn.Module):
        def forward(self, x):
            return mapped(lambda row: row.sin(), x)

    with pytest.raises(CaptureError, match=r"(?s)higher-order operator map.*cond, while_loop.*torch\.vmap"):
        capture(Mapped(), (torch.ones(2, 3),))


def test_a_loop_that_hands_on_a_number_is_refused_or_hands_on_a_tensor():
    class Counted(nn.Module):
        def forward(self, x):
            return torch.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h * 2), (0, x))[1]

    with pytest.raises(CaptureError, match=r"(?s)hands on a number.*torch\.tensor\(0\)"):
        capture(Counted(), (torch.ones(2, 3),))


def test_gradients_through_dropout_in_a_branch_are_refused():
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: nn.functional.dropout(self.layer(x)), lambda x: x * 2, (x,))

    ours = ORTModule(Dropping())
    with pytest.raises(OntrainError, match=r"(?s)random.*way out"):
        ours(torch.ones(2, 3)).sum().backward()


def test_an_exported_loop_runs_in_stock_onnxruntime_as_often_as_the_data_say(tmp_path):
    class Result(Halving):
        def forward(self, x):
            return super().forward(x)[0]

    description = {
        "inputs": [("x", ["batch", 3]), ("label", ["batch", 3])],
        "outputs": [("loss", [], True), ("y", ["batch", 3])],
    }
    trainer = make_trainer(Result(), optim.SGDConfig(lr=0.1), description, nn.functional.mse_loss)
    trainer.train_step(torch.randn(2, 3), torch.rand(2, 3))
    trainer.save_as_onnx(tmp_path / "loop.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "loop.onnx", providers=["CPUExecutionProvider"])
    for size, batch in ((0.1, 1), (2.0, 5)):
        x = size * torch.randn(batch, 3)
        expected = trainer.eval_step(x, torch.rand(batch, 3))[1]
        (result,) = session.run(None, {"x": x.numpy()})
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
