"""Parameters that reach a loss by derivatives of zero only have zeros for gradients; others beside it have none."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ontrain.training import ORTTrainer, optim
from ontrain.training.compiled import ontrain
from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import assert_same_gradients, gradients

DOUBLE = dict(rtol=1e-9, atol=1e-11)
STEP = dict(rtol=1e-6, atol=1e-8)
CONSTANT = {
    "sign": torch.sign, "sgn": torch.sgn, "round": torch.round, "floor": torch.floor, "ceil": torch.ceil,
    "trunc": torch.trunc, "rounded to a digit": lambda p: torch.round(p, decimals=1),
    "quotient's floor": lambda p: torch.div(p, 0.7, rounding_mode="floor"),
    "truncated quotient": lambda p: torch.div(p, 0.7, rounding_mode="trunc"),
    "floor of the quotient by it": lambda p: torch.div(torch.full_like(p, 2.5), p, rounding_mode="floor"),
    "sign of another": lambda p: torch.copysign(torch.full_like(p, 2.0), p),
    "drawn by chance": lambda p: torch.bernoulli(p.sigmoid()) * 0,
    "drawn in place by chance": lambda p: torch.zeros_like(p).bernoulli_(p.sigmoid()) * 0,
    "drawn by rate": lambda p: torch.poisson(p.exp()) * 0,
    "drawn around it": lambda p: torch.normal(p, 1.0).sign().abs(),
    "drawn so far": lambda p: torch.normal(0.0, p.exp()).sign().abs(),
    "drawn so far around it": lambda p: torch.normal(p, p.exp()).sign().abs(),
    "zeroed": lambda p: (p * 1).zero_(), "filled": lambda p: (p * 1).fill_(2.0),
    "overwritten": lambda p: (p * 1).copy_(torch.ones_like(p)),
    "redrawn": lambda p: (p * 1).uniform_() * 0 + (p * 1).normal_() * 0 + (p * 1).exponential_() * 0,
    "redrawn unusually": lambda p: (
        (p * 1).cauchy_() * 0 + (p * 1).log_normal_() * 0 + (p * 1).geometric_(0.5) * 0 + (p * 1).bernoulli_(0.5) * 0
    ),
    "summand of weight 0": lambda p: torch.addmm(p[:, :2], torch.ones(2, 3).to(p), torch.ones(3, 2).to(p), beta=0),
    "imaginary part of what is real": lambda p: p.to(torch.complex128).imag,
    "place of a nearest pixel": lambda p: F.grid_sample(
        torch.ones(1, 1, 3, 3).to(p), p[None, :, None, :2], mode="nearest", align_corners=False
    ),
    "through others": lambda p: F.relu(torch.cat([p.exp().floor(), torch.ones(1, 3).to(p)]) @ p.t().ceil()),
    "nothing of it": lambda p: p[:0], "row that is masked": lambda p: p.masked_fill(torch.ones(2, 3) > 0, 0.0),
}  # fmt: skip
"""Functions whose gradient is zeros. What is drawn is compared by what is left of it."""
ABSENT = {
    "detached": lambda p: p.detach(), "detached and rounded": lambda p: p.detach().round(),
    "largest place": lambda p: p.argmax(-1).double(), "sorted places": lambda p: p.sort()[1].double(),
    "comparison": lambda p: (p > 0).double(), "whole numbers": lambda p: p.long().double(),
    "zeros alike": torch.zeros_like, "numbers alike": lambda p: torch.full_like(p, 2.0),
    "count": lambda p: p.count_nonzero().double(), "choice": lambda p: torch.where(p > 0, 1.0, 0.0).double(),
    "one of classes": lambda p: F.one_hot(p.argmax(-1), 3).double(), "rounded to whole": lambda p: p.round().long(),
}  # fmt: skip
"""Functions that have no gradient."""
BOTH = {
    "straight through": lambda p: p + (p.round() - p).detach(), "rest": torch.frac,
    "hard choice": lambda p: p.detach() * (p.softmax(-1) + (F.one_hot(p.argmax(-1), 3) - p.softmax(-1)).detach()),
}  # fmt: skip
"""Functions with a gradient of numbers."""
VALUES = [[-1.6, 0.4, 2.3], [0.7, 1.2, -0.3]]


class Weighted(nn.Module):
    """A parameter for each function; the loss is what they return, weighted by the input."""

    def __init__(self, functions):
        super().__init__()
        self.functions = list(functions.values())
        self.weights = nn.ParameterList(torch.tensor(VALUES, dtype=torch.float64) for _ in functions)
        self.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x):
        results = [f(p).sum().to(x.dtype) for f, p in zip(self.functions, self.weights, strict=True)]
        return (torch.stack(results) * x.sum()).sum()


def compiled(module):
    torch._dynamo.reset()
    return torch.compile(module, backend=ontrain, options={"fallback": "FALLBACK_DISABLE"})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("wrap", [ORTModule, compiled])
def test_gradients_are_zeros_where_eagers_are_and_absent_where_eagers_are(wrap):
    module = Weighted(CONSTANT | ABSENT | BOTH)
    wrapped = copy.deepcopy(module)
    call = wrap(wrapped)
    for batch in (2, 3):
        x = torch.rand(batch, dtype=torch.float64)
        for each in (module, wrapped):
            each.zero_grad()
        results = [module(x), call(x)]
        for result in results:
            result.backward()
        torch.testing.assert_close(*results, **DOUBLE)
        assert_same_gradients(wrapped, module, **DOUBLE)
    absent = {name for name, gradient in gradients(module).items() if gradient is None}
    assert len(absent) == len(ABSENT) + 1, "the table says what eager PyTorch does"
    assert sum(g is not None and not g.any() for g in gradients(module).values()) == len(CONSTANT)


@pytest.mark.parametrize("wrap", [ORTModule, compiled])
@pytest.mark.parametrize("function", [CONSTANT["sign"], CONSTANT["zeroed"], CONSTANT["place of a nearest pixel"]])
def test_a_loss_without_any_other_gradient_has_one(function, wrap):
    module = Weighted({"alone": function})
    call = wrap(module)
    for _ in range(2):
        loss = call(torch.ones(2, dtype=torch.float64))
        assert loss.requires_grad
        loss.backward()
        assert not module.weights[0].grad.any() and module.unused.grad is None
        module.weights[0].grad.add_(1.0)  # the gradient is the caller's own
        module.zero_grad()


def test_an_output_that_depends_on_no_parameter_requires_no_gradient():
    module = ORTModule(Weighted(ABSENT))
    assert not module(torch.ones(2, dtype=torch.float64)).requires_grad


def test_weight_decay_reaches_parameters_whose_gradient_is_zeros():
    eager = Weighted(CONSTANT | ABSENT | BOTH)
    optimizer = torch.optim.AdamW(eager.parameters(), lr=0.1, weight_decay=0.1)
    description = {"inputs": [("x", ["batch"])], "outputs": [("loss", [], True)]}
    config = optim.AdamConfig(
        lr=0.1, lambda_coef=0.1, max_norm_clip=1e9, weight_decay_mode=optim.AdamConfig.DecayMode.BEFORE_WEIGHT_UPDATE
    )
    trainer = ORTTrainer(copy.deepcopy(eager), description, config, options={"device": {"id": "cpu"}})
    for _ in range(3):
        x = torch.rand(3, dtype=torch.float64)
        eager(x).backward()
        optimizer.step()
        optimizer.zero_grad()
        trainer.train_step(x)
    trained = trainer.state_dict(pytorch_format=True)
    for name, parameter in eager.named_parameters():
        torch.testing.assert_close(
            trained[name], parameter.detach(), msg=lambda text, name=name: f"{name}: {text}", **STEP
        )


def test_gradients_of_gradients_are_zeros():
    module = Weighted({"sign": torch.sign, "square": torch.square})
    wrapped = ORTModule(copy.deepcopy(module))
    for each in (module, wrapped):
        loss = each(torch.ones(2, dtype=torch.float64))
        flat, curved = torch.autograd.grad(loss, list(each.weights), create_graph=True)
        assert not flat.any()
        curved.square().sum().backward()
    assert_same_gradients(wrapped, module, **DOUBLE)
