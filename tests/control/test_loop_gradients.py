"""What a loop's gradient computes once after the loop, and keeps of an iteration, leaves the numbers as they are."""

import pytest
import torch
from torch import nn

from ontrain.functions import inline_all
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import assert_same_gradients, pair

pytestmark = pytest.mark.sampled(4)

LENGTH = 90  # too many nodes to be unrolled


class Cells(nn.Module):
    def __init__(self, kind, *, bidirectional: bool = False, layers: int = 1) -> None:
        super().__init__()
        self.cells = kind(5, 6, layers, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(12 if bidirectional else 6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x)[0]).square().mean()


def step_of(module: nn.Module, x: torch.Tensor) -> ORTTrainer:
    names = {"inputs": [("x", list(x.shape))], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(module, names, optim.SGDConfig(lr=0.1))
    trainer.train_step(x)
    return trainer


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"layers": 2}], ids=str)
def test_gradients_over_a_long_sequence_are_eagers(kind, options):
    ours, eager = pair(Cells(kind, **options).double())
    x = torch.randn(4, LENGTH, 5, dtype=torch.float64)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours(mine).backward()
    eager(theirs).backward()
    assert_same_gradients(ours, eager, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind, products", [(nn.LSTM, 1), (nn.GRU, 1), (nn.RNN, 1)])
def test_the_loop_backwards_multiplies_for_the_state_alone(kind, products):
    graph = inline_all(step_of(Cells(kind), torch.randn(4, LENGTH, 5)).step_model()).graph
    bodies = [node.attributes["body"].value for node in graph if node.op_type == "Loop"]
    assert [sum(node.op_type in ("MatMul", "Gemm") for node in body) for body in bodies] == [products, products]


def test_weights_used_twice_in_an_iteration_get_both_gradients():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.weight = nn.RNN(5, 5, batch_first=True), nn.Parameter(torch.randn(5, 5) / 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, _ = self.cell(x @ self.weight)
            z, _ = self.cell(y @ self.weight.T)
            return z.square().mean()

    ours, eager = pair(Twice().double())
    x = torch.randn(3, LENGTH, 5, dtype=torch.float64)
    for module in (ours, eager):
        module(x).backward()
    assert_same_gradients(ours, eager, rtol=1e-9, atol=1e-12)


def test_a_module_is_evaluated_without_what_its_gradient_keeps():
    module = ORTModule(Cells(nn.GRU))
    x = torch.randn(4, LENGTH, 5)
    loss = module(x)
    loss.backward()
    with torch.no_grad():
        torch.testing.assert_close(module(x), loss.detach())
