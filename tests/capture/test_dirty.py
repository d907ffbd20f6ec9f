"""Functions that write to their inputs and say so by `ctx.mark_dirty` have eager PyTorch's values and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule


class Scaled(torch.autograd.Function):
    """x ← 3 x, with a gradient of its own that reads what it wrote."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(3)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy * x.cos()


class ScaledBySetup(torch.autograd.Function):
    """As above, marked in setup_context, of the first of two arguments."""

    @staticmethod
    def forward(x, scale):
        return x.mul_(scale)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(output)
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, dy):
        return dy * 5, (dy * ctx.saved_tensors[0]).sum(0)


class Exchanged(torch.autograd.Function):
    """(a, b) ← (a + b, 2 b) and their product: two of the three results are inputs."""

    @staticmethod
    def forward(ctx, a, b):
        a.add_(b)
        b.mul_(2)
        ctx.mark_dirty(a, b)
        return b, a * b, a

    @staticmethod
    def backward(ctx, db, dproduct, da):
        return da + dproduct, 2 * db - da


class Counting(torch.autograd.Function):
    """Adds to a tensor of whole numbers how many are positive, beside a straight-through sign."""

    @staticmethod
    def forward(ctx, x, counts):
        counts.add_((x > 0).sum(0))
        ctx.mark_dirty(counts)
        return x.sign(), counts

    @staticmethod
    def backward(ctx, dy, _):
        return dy, None


class Perhaps(torch.autograd.Function):
    """Writes to its input if it is told to."""

    @staticmethod
    def forward(ctx, x, in_place):
        if not in_place:
            return x.clamp(min=0)
        y = x.clamp_(min=0)
        ctx.mark_dirty(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        return dy.abs(), None


class Network(nn.Module):
    """A layer, and then what `rest` does with its result."""

    def __init__(self, rest):
        super().__init__()
        self.rest, self.linear, self.scale = rest, nn.Linear(4, 6), nn.Parameter(torch.rand(6))

    def forward(self, x):
        return self.rest(self, self.linear(x))


def read_afterwards(module, h):
    before = h * 2
    Scaled.apply(h)
    return before + h * h


def of_a_view(module, h):
    Scaled.apply(h[:, 2:4])
    return h.square()


def twice(module, h):
    return Scaled.apply(Perhaps.apply(h, True)).square()


def of_two(module, h):
    b, product, a = Exchanged.apply(h + 1, 2 * h)
    return b.square() + product + a.exp()


def of_what_wants_no_gradient(module, h):
    x = torch.ones_like(h)
    y = ScaledBySetup.apply(x, module.scale)
    return y * h + x.square()


def counted(module, h):
    counts = torch.zeros(6, dtype=torch.int64)
    y, _ = Counting.apply(h, counts)
    return y * counts + h


FORWARDS = {
    "its result": lambda module, h: Scaled.apply(h) * 2,
    "what it wrote to": read_afterwards,
    "a view": of_a_view,
    "twice": twice,
    "of two": of_two,
    "setup_context": lambda module, h: ScaledBySetup.apply(h, module.scale).sin(),
    "no gradient": of_what_wants_no_gradient,
    "whole numbers": counted,
    "in place": lambda module, h: Perhaps.apply(h, True) + h,
    "not in place": lambda module, h: Perhaps.apply(h, False) + h,
}


@pytest.mark.parametrize("name", FORWARDS)
@pytest.mark.parametrize("road", ["capture", "breaks"])
@pytest.mark.sampled(2)
def test_a_function_that_writes_to_its_input_has_eagers_gradients(name, road):
    torch.manual_seed(0)
    eager = Network(FORWARDS[name]).double()
    ours = ORTModule(copy.deepcopy(eager), **({"breaks": "allow"} if road == "breaks" else {}))
    for rows in (3, 5, 3):
        x = torch.randn(rows, 4, dtype=torch.float64)
        results = []
        for module in (ours, eager):
            module.zero_grad()
            own = x.clone().requires_grad_()
            y = module(own)
            (y * torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape)).sum().backward()
            gradients = [own.grad, *(p.grad for p in module.parameters() if p.grad is not None)]
            results.append([y.detach(), *gradients])
        torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
