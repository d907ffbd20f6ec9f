"""Einsum: products of elements multiply, and sums of products along scattered axes are copied nowhere."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ontrain.training.ortmodule import ORTModule
from tests.providers.bodies import compare, lowered_in

_LENGTHS = {"b": 6, "h": 5, "m": 4, "d": 3, "n": 7, "f": 8, "l": 1}


@lowered_in("einsum")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")


class Product(nn.Module):
    """One einsum of a parameter and an input."""

    def __init__(self, equation: str) -> None:
        super().__init__()
        terms = equation.partition("->")[0].split(",")
        shapes = [[_LENGTHS[letter] for letter in term] for term in terms]
        self.equation, self.weight, self.shape = equation, nn.Parameter(torch.randn(shapes[0])), shapes[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum(self.equation, self.weight, x)


def products(module: nn.Module, x: torch.Tensor) -> set[str]:
    """Train one step, and return the kernels of a second one that multiply matrices; gradients are those of both."""
    module(x).square().sum().backward()
    with profile(activities=[ProfilerActivity.CPU]) as record:
        module(x).square().sum().backward()
    return {event.key for event in record.key_averages()} & {"aten::bmm", "aten::einsum"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("equation", "multiplies"),
    [
        ("bhd,bmd->bhmd", False),  # feature maps of a recommender, and sums along an axis in the middle going back
        ("bmd,bhmd->bhd", False),
        ("bnh,bnhf->bhf", False),  # attention to nodes by heads
        ("hf,bnhf->bnh", False),
        ("bd,bd->bd", False),
        ("b,d->db", True),  # going back: a matrix by a vector
        ("bn,bnd->bd", True),
        ("bd,mdn->bmn", True),
        ("bhd,d->bh", True),
        ("nl,nf->nf", True),
        ("bml,bhm->bl", True),
        ("bb,bd->bd", True),
    ],
)
def test_results_and_gradients_are_eagers(equation, multiplies):
    torch.manual_seed(0)
    eager = Product(equation)
    ours = ORTModule(copy.deepcopy(eager))
    inputs = [torch.randn(eager.shape, requires_grad=True) for _ in range(2)]
    assert bool(products(ours, inputs[0])) is multiplies
    wide = copy.deepcopy(eager).double()
    inputs[1] = inputs[0].detach().double().requires_grad_()
    products(wide, inputs[1])
    torch.testing.assert_close(ours(inputs[0]).double(), wide(inputs[1]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.weight.grad.double(), wide.weight.grad, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(inputs[0].grad.double(), inputs[1].grad, rtol=1e-5, atol=1e-4)
