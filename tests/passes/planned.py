"""A small classifier whose plans these tests look at, and a pass that is wrong for one of its two layers."""

from __future__ import annotations

import torch

from ontrain.passes import RewritePass
from ontrain.training import ORTTrainer, optim

DESCRIPTION = {
    "inputs": [("x", ["batch", 8]), ("label", ["batch"])],
    "outputs": [("loss", [], True), ("logits", ["batch", 4])],
}


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x):
        return torch.tanh(self.second(torch.tanh(self.first(x))))


class TanhByExponentials(RewritePass):
    """Tanh(x) → (e²ˣ − 1) / (e²ˣ + 1), but with e³ˣ where rows have length 4: the planted mistake."""

    def rewrite(self, op, node, inputs):
        if node.op_type != "Tanh":
            return None
        x = inputs[0]
        power = op.Exp(x * (3.0 if x.shape[-1] == 4 else 2.0))
        return [(power - 1.0) / (power + 1.0)]


def network():
    torch.manual_seed(0)
    return Network()


def make_trainer(model=None, **options):
    return ORTTrainer(
        model or network(), DESCRIPTION, optim.SGDConfig(lr=0.1), torch.nn.functional.cross_entropy,
        {"device": {"id": "cpu"}, **options},
    )  # fmt: skip


def batch():
    torch.manual_seed(1)
    return torch.randn(6, 8), torch.randint(4, (6,))


def loss(**options):
    """The loss of one training step of a new trainer."""
    return float(make_trainer(**options).train_step(*batch())[0])


def eager_loss():
    x, label = batch()
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(network()(x), label))
