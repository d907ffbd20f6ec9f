"""Activations written as formulas become one operator, whoever wrote them; what only looks like one is left alone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

from ontrain.passes import FuseActivations
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule
from tests.passes.graphs import applied, graph, operators


def _gelu_tanh(op, x):
    return (0.5 * x) * (1.0 + op.Tanh(np.sqrt(2 / np.pi).item() * (x + 0.044715 * op.Pow(x, 3.0))))


def _gelu_tanh_factored(op, x):
    return x * (0.5 * (1.0 + op.Tanh((x * 0.79788456) * (1.0 + 0.044715 * (x * x)))))


FORMULAS = {
    "gelu-tanh": (_gelu_tanh, "Gelu", "tanh"),
    "gelu-tanh-factored": (_gelu_tanh_factored, "Gelu", "tanh"),
    "gelu-erf": (lambda op, x: (x * 0.5) * (1.0 + op.Erf(x / 1.41421356)), "Gelu", "none"),
    "gelu-erf-halved-last": (lambda op, x: (x * (op.Erf(x * 0.70710678) + 1.0)) * 0.5, "Gelu", "none"),
    "silu": (lambda op, x: x * op.Sigmoid(x), "Silu", None),
    "silu-reversed": (lambda op, x: op.Sigmoid(x) * x, "Silu", None),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_becomes_the_activation(name):
    formula, wanted, approximate = FORMULAS[name]
    rewritten = applied(FuseActivations(), graph(formula, x=[3, 40]), count=1, bitwise=False)
    assert operators(rewritten) == [wanted]
    if approximate is not None:
        assert rewritten.graph[0].attributes.get_string("approximate", "none") == approximate


def test_the_argument_may_be_a_formula_itself():
    rewritten = applied(FuseActivations(), graph(lambda op, x: _gelu_tanh(op, 2.0 * x), x=[8]), count=1, bitwise=False)
    assert operators(rewritten) == ["Mul", "Gelu"]


def test_two_in_a_row_are_both_found():
    twice = graph(lambda op, x: _gelu_tanh(op, _gelu_tanh(op, x)), x=[8])
    assert operators(applied(FuseActivations(), twice, count=2, bitwise=False)) == ["Gelu", "Gelu"]


LOOKALIKES = {
    "another constant": lambda op, x: (0.5 * x) * (1.0 + op.Tanh(0.79788456 * (x + 0.045 * op.Pow(x, 3.0)))),
    "a slope of 1.702": lambda op, x: x * op.Sigmoid(1.702 * x),
    "another factor": lambda op, x: (0.25 * x) * (1.0 + op.Erf(x / 1.41421356)),
    "two variables": lambda op, x, y: x * op.Sigmoid(y),
    "a vector of factors": lambda op, x: (x * np.full(8, 0.5, np.float32)) * (1.0 + op.Erf(x / 1.41421356)),
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_what_only_looks_like_one_is_left_alone(name):
    shapes = {"x": [8], "y": [8]} if name == "two variables" else {"x": [8]}
    applied(FuseActivations(), graph(LOOKALIKES[name], **shapes), count=0)


def test_a_formula_whose_part_is_read_elsewhere_is_left_alone():
    def make(op, x):
        gate = op.Sigmoid(x)
        return x * gate, gate

    applied(FuseActivations(), graph(make, x=[8]), count=0)


class _Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 32), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = self.up(x)
        u = 0.5 * u * (1.0 + torch.tanh(0.7978845608028654 * (u + 0.044715 * torch.pow(u, 3.0))))
        return (self.down(u * torch.sigmoid(u)) ** 2).mean()


def test_losses_of_training_stay_the_same():
    network, x, curves = _Network(), torch.randn(16, 6), []
    for disabled in ([], ["FuseActivations"]):
        again = _Network()
        again.load_state_dict(network.state_dict())
        trainer = ORTTrainer(
            again, {"inputs": [("x", ["batch", 6])], "outputs": [("loss", [], True)]}, optim.SGDConfig(lr=0.1),
            options={"graph_transformer": {"disabled_passes": disabled}},
        )  # fmt: skip
        curves.append([float(trainer.train_step(x)) for _ in range(5)])
        kinds = {node.op_type for node in trainer.step_model().graph}
        assert ("GeluGrad" in kinds) == ("SiluGrad" in kinds) == (not disabled)
    np.testing.assert_allclose(*curves, rtol=1e-6)


HALF_FORMULAS = {
    "gelu-tanh": (
        lambda u: 0.5 * u * (1.0 + torch.tanh(0.7978845608028654 * (u + 0.044715 * torch.pow(u, 3.0)))), "Gelu",
    ),
    "gelu-erf": (lambda u: u * 0.5 * (1.0 + torch.erf(u / 2**0.5)), "Gelu"),
    "silu": (lambda u: u * torch.sigmoid(u), "Silu"),
}  # fmt: skip


@pytest.mark.parametrize("name", HALF_FORMULAS)
def test_rounded_constants_of_half_precision_are_known_and_the_activation_is_as_near_the_truth_as_the_formula(name):
    formula, wanted = HALF_FORMULAS[name]

    class Formula(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return formula(x)

    x = torch.linspace(-6, 6, 193).to(torch.bfloat16)
    exact = x.double().requires_grad_()
    formula(exact).sum().backward()
    eager, own = (x.clone().requires_grad_() for _ in range(2))
    formula(eager).sum().backward()
    module = ORTModule(Formula())
    module(own).sum().backward()
    (plan,) = (plan for entry in module._engine.entries for plan in entry.session.plans.values())
    assert operators(plan.model) == [wanted, f"{wanted}Grad"]
    for value, other, truth in (
        (module(x), formula(x), formula(x.double())), (own.grad, eager.grad, exact.grad),
    ):  # fmt: skip
        assert (value.double() - truth).abs().max() <= (other.double() - truth).abs().max()


@pytest.mark.parametrize("name", ["a slope of 1.702", "another factor", "two variables"])
def test_in_half_precision_what_only_looks_like_one_is_left_alone(name):
    def halved(op, *inputs):
        half = [op.Cast(x, to=ir.DataType.BFLOAT16) for x in inputs]
        return op.Cast(LOOKALIKES[name](op, *half), to=ir.DataType.FLOAT)

    shapes = {"x": [8], "y": [8]} if name == "two variables" else {"x": [8]}
    _, changed = FuseActivations().apply(graph(halved, **shapes))
    assert changed == 0
