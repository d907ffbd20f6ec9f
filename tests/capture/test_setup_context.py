"""What `setup_context` of an autograd function computes, keeps and marks acts as in eager, and changes nothing else."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule

pytestmark = pytest.mark.sampled(4)


class Kept(torch.autograd.Function):
    """Its setup_context makes a tensor that only the backward reads."""

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0].sin())

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.saved_tensors[0]


class OfWeight(torch.autograd.Function):
    """Keeps what it made of a parameter and of its result."""

    @staticmethod
    def forward(x, weight):
        return x * weight

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight = inputs
        ctx.save_for_backward(x, (weight * weight).exp(), output.tanh())

    @staticmethod
    def backward(ctx, dy):
        x, grown, bounded = ctx.saved_tensors
        return dy * grown * bounded, (dy * x * grown).sum(0)


class NoGrad(Kept):
    """Makes its tensor under a no_grad of its own."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        with torch.no_grad():
            ctx.save_for_backward(inputs[0].cos())


class TurnsOff(Kept):
    """Turns gradients off, which ends with it."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        torch.set_grad_enabled(False)
        ctx.save_for_backward(inputs[0].cos())


class Sine(TurnsOff):
    """The same where the backward is the derivative, so that its forward alone is traced."""

    @staticmethod
    def forward(x):
        return x.sin()


class Asks(Kept):
    """Looks whether what it makes takes a gradient."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0] + torch.is_grad_enabled() + inputs[0].sin().requires_grad)


class Marks(torch.autograd.Function):
    """A second result without a gradient, and a tensor made of both."""

    @staticmethod
    def forward(x):
        return x * 2, x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[0] * output[1])

    @staticmethod
    def backward(ctx, dy, dz):
        return dy * ctx.saved_tensors[0] + dz


class MarksEarly(torch.autograd.Function):
    """The same in a forward that has the context; what has no adjoint is None."""

    @staticmethod
    def forward(ctx, x):
        result = x.sin()
        ctx.mark_non_differentiable(result)
        ctx.set_materialize_grads(False)
        return x * 2, result

    @staticmethod
    def backward(ctx, dy, dz):
        return dy * (5 if dz is None else 7)


class Strong(torch.autograd.Function):
    """An argument may be left out; its gradient has a part that no adjoint scales."""

    @staticmethod
    def forward(x, strength=3.0):
        return x * strength

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.strength = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, dy):
        return (dy * ctx.strength).clamp(-1, 1) + ctx.saved_tensors[0].cos(), None


class Inherits(TurnsOff):
    """Everything is its base's."""


def without_gradient(function, x):
    with torch.no_grad():
        return function(x)


CASES = {
    "a new tensor": lambda x, w: Kept.apply(x),
    "a tensor of a parameter": lambda x, w: OfWeight.apply(x, w),
    "under no_grad": lambda x, w: NoGrad.apply(x),
    "turns gradients off": lambda x, w: TurnsOff.apply(x) * x,
    "turns gradients off around a derivative": lambda x, w: Sine.apply(x) * x,
    "asks for the mode": lambda x, w: Asks.apply(x),
    "marks a result": lambda x, w: sum(Marks.apply(x)),
    "marks a result in forward": lambda x, w: sum(MarksEarly.apply(x)),
    "only the marked result": lambda x, w: x + Marks.apply(x)[1],
    "defaults": lambda x, w: Strong.apply(Strong.apply(x, 2.0)),
    "twice of one value": lambda x, w: Strong.apply(x) * x + Strong.apply(x),
    "a base and its heir": lambda x, w: TurnsOff.apply(x) + Inherits.apply(x) * w,
    "with and without a gradient": lambda x, w: TurnsOff.apply(x) * without_gradient(TurnsOff.apply, x),
    "of another function's result": lambda x, w: Sine.apply(TurnsOff.apply(x)) + Kept.apply(Marks.apply(x)[0]),
}


class Net(nn.Module):
    def __init__(self, rest):
        super().__init__()
        self.before, self.after = nn.Linear(4, 4), nn.Linear(4, 3)
        self.weight, self.rest = nn.Parameter(torch.randn(4)), rest

    def forward(self, x):
        return self.after(self.rest(self.before(x), self.weight) * self.weight)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("frozen", ["", "weight", "before"])
@pytest.mark.parametrize("rest", CASES.values(), ids=CASES)
def test_gradients_are_eagers(rest, frozen):
    eager = Net(rest).double()
    for name, parameter in eager.named_parameters():
        parameter.requires_grad_(not (frozen and name.startswith(frozen)))
    ours = ORTModule(copy.deepcopy(eager))
    inputs = [torch.linspace(-2, 2, 20, dtype=torch.float64).view(5, 4).requires_grad_() for _ in range(2)]
    outputs = [function(x) for function, x in zip((ours, eager), inputs, strict=True)]
    torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-14)
    for y in outputs:
        y.square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-12, atol=1e-12)
    for (name, mine), theirs in zip(ours.named_parameters(), eager.parameters(), strict=True):
        assert (mine.grad is None) is (theirs.grad is None), name
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-12, atol=1e-12)


class Counts(torch.autograd.Function):
    """Counts its calls in a buffer, in setup_context."""

    @staticmethod
    def forward(x, calls):
        return x.sign()

    @staticmethod
    def setup_context(ctx, inputs, output):
        inputs[1].add_(1)

    @staticmethod
    def backward(ctx, dy):
        return dy * 2, None


def test_it_is_called_once_a_call():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            return Counts.apply(self.linear(x), self.calls)

    ours = ORTModule(Counting())
    for calls in (1, 2, 3):
        ours(torch.randn(3, 4)).sum().backward()
        assert float(ours.calls) == calls


def test_the_functions_own_is_back_afterwards():
    own = TurnsOff.forward, TurnsOff.setup_context
    ORTModule(Net(CASES["a base and its heir"]))(torch.randn(2, 4)).sum().backward()
    assert (TurnsOff.forward, TurnsOff.setup_context) == own
    assert Inherits.setup_context is TurnsOff.setup_context and "setup_context" not in vars(Inherits)
