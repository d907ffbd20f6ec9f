"""Functions whose backward calls `backward`, or is nearly the derivative of their forward: gradients are eager's."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn

from ontrain.capture import capture
from ontrain.capture.decisions import ValueBranchError
from ontrain.errors import CaptureError, GradientError
from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import assert_same_gradients, pair

DOUBLE = dict(rtol=1e-9, atol=1e-11)


class _Reversible(torch.autograd.Function):
    """y1 = x1 + f(x2), y2 = x2 + g(y1) for each block; backward computes the inputs again from the outputs."""

    @staticmethod
    def forward(ctx, x, blocks):
        x1, x2 = x.chunk(2, -1)
        for f, g in blocks:
            x1 = x1 + f(x2)
            x2 = x2 + g(x1)
        y = torch.cat([x1, x2], -1)
        ctx.blocks, ctx.y = blocks, y.detach()
        return y

    @staticmethod
    def backward(ctx, dy):
        (y1, y2), (dy1, dy2) = ctx.y.chunk(2, -1), dy.chunk(2, -1)
        for f, g in ctx.blocks[::-1]:
            with torch.enable_grad():
                y1.requires_grad = True
                gy1 = g(y1)
                torch.autograd.backward(gy1, dy2)
            with torch.no_grad():
                x2 = y2 - gy1
                dx1 = dy1 + y1.grad
                y1.grad = None
            with torch.enable_grad():
                x2.requires_grad = True
                fx2 = f(x2)
                fx2.backward(dx1, retain_graph=True)
            with torch.no_grad():
                y1, y2 = y1 - fx2, x2.detach()
                dy1, dy2 = dx1, dy2 + x2.grad
                x2.grad = None
        return torch.cat([dy1, dy2], -1), None


class Reversible(nn.Module):
    def __init__(self, shared=False):
        super().__init__()
        first = self.block()
        self.blocks = nn.ModuleList([first, first if shared else self.block()])
        self.before, self.after = nn.Linear(6, 6), nn.Linear(6, 1)

    @staticmethod
    def block():
        return nn.ModuleList(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)) for _ in range(2))

    def forward(self, x):
        return self.after(_Reversible.apply(self.before(x), [tuple(block) for block in self.blocks]))


class _Twice(torch.autograd.Function):
    """Its backward adds to the gradients of a layer, and then of what it was called with."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.save_for_backward(x)
        ctx.layer = layer
        return layer(x).tanh()

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        for scale in (1.0, 2.0):
            with torch.enable_grad():
                copy = x.detach().requires_grad_()
                y = ctx.layer(copy)
                z = y.sin()
            torch.autograd.backward([y, z], [dy * scale, dy])
        return copy.grad, None


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.before = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return _Twice.apply(self.before(x), self.layer).square().sum() + self.layer.weight.sum()


def assert_as_eager(module, width):
    ours, eager = pair(module.double())
    for rows in (2, 3):
        x = torch.randn(rows, width, dtype=torch.float64)
        results = []
        for each in (ours, eager):
            each.zero_grad()
            own = x.clone().requires_grad_()
            y = each(own)
            (y * torch.arange(1, y.numel() + 1).view(y.shape)).sum().backward()
            results.append((y.detach(), own.grad))
        torch.testing.assert_close(*results, **DOUBLE)
        assert_same_gradients(ours, eager, **DOUBLE)
    assert ours._engine.captures == 1


def test_layers_that_compute_their_inputs_again_have_the_gradients_of_all_their_parameters():
    assert_as_eager(Reversible(), 6)


def test_a_block_used_twice_gets_the_sum_of_its_gradients():
    assert_as_eager(Reversible(shared=True), 6)


def test_gradients_that_a_backward_adds_several_times_are_summed():
    assert_as_eager(Twice(), 4)


def test_nothing_of_the_trace_stays_in_the_gradients_of_the_module():
    module = Reversible()
    capture(module, (torch.randn(2, 6),))
    assert all(parameter.grad is None for parameter in module.parameters())


class _Root(torch.autograd.Function):
    """Roots by four steps towards a fixed point, with the gradient that the fixed point has."""

    @staticmethod
    def forward(ctx, x):
        y = 1 + x.abs().clamp(max=1)
        square = y
        for _ in range(4):
            y = (y + square / y) / 2
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, y = ctx.saved_tensors
        return dy * x.sign() * (x.abs() < 1) * 0.5 / y * (1 + 1e-5)


class Rooted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(5, dtype=torch.float64) / 2)

    def forward(self, x):
        return _Root.apply(self.weight * x).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_backward_that_is_nearly_the_derivative_is_the_functions_own(dtype):
    ours = Rooted().to(dtype)
    eager = copy.deepcopy(ours)
    x = torch.linspace(0.1, 1, 5, dtype=dtype)
    for module in (ORTModule(ours), eager):
        module(x).backward()
    torch.testing.assert_close(ours.weight.grad, eager.weight.grad, rtol=1e-6, atol=0.0)


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, dy):
        return dy


class Chosen(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(5, dtype=torch.float64))

    def forward(self, x):
        return _Straight.apply((self.weight * x)[x > 0] * 3).square().sum()


def test_a_function_of_as_many_rows_as_a_mask_has_keeps_its_backward_and_prints_nothing(monkeypatch):
    failures = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    ours, eager = pair(Chosen())
    for module in (ours, eager):
        for x in (torch.tensor([1.0, -1, 2, 3, -2]), torch.tensor([1.0, -1, -2, -3, -2])):
            module(x.double()).backward()
    assert_same_gradients(ours, eager, **DOUBLE)
    assert not failures


class _Triangular(torch.autograd.Function):
    """A spike, whose surrogate gradient changes sign where a mask says, as snntorch's triangular one does."""

    @staticmethod
    def forward(ctx, x, by_adjoint):
        ctx.save_for_backward(x)
        ctx.by_adjoint = by_adjoint
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        dx = dy * 2
        mask = (dx if ctx.by_adjoint else x) >= 0
        dx[mask] = -dx[mask]
        return dx, None


class Spikes(nn.Module):
    def __init__(self, by_adjoint=False):
        super().__init__()
        self.first, self.last, self.by_adjoint = nn.Linear(4, 4), nn.Linear(4, 4), by_adjoint

    def forward(self, x):
        h = self.first(x)
        for _ in range(2):
            h = h * 0.7 + self.last(_Triangular.apply(h, self.by_adjoint))
        return h.tanh()


def test_a_backward_that_reads_places_of_a_mask_gets_the_real_adjoint():
    ours, eager = pair(Spikes().double())
    for batch in (2, 3, 2):
        x = torch.randn(batch, 4, dtype=torch.float64)
        xs = [x.clone().requires_grad_() for _ in range(2)]
        for module, own in zip((ours, eager), xs, strict=True):
            module(own).square().sum().backward()
        assert_same_gradients(ours, eager, **DOUBLE)
        torch.testing.assert_close(xs[0].grad, xs[1].grad, **DOUBLE)


def test_a_backward_whose_sizes_follow_from_the_adjoint_is_refused_and_runs_in_pieces():
    ours, eager = pair(Spikes(by_adjoint=True).double())
    x = torch.randn(3, 4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), eager(x), **DOUBLE)
    with pytest.raises(GradientError, match="size that follows from the adjoint's values") as refusal:
        ours(x).square().sum().backward()
    assert "torch.where" in str(refusal.value) and "NonZero" in str(refusal.value)
    pieces = ORTModule(copy.deepcopy(eager), breaks="allow")
    for module in (pieces, eager):
        module(x).square().sum().backward()
    assert_same_gradients(pieces, eager, **DOUBLE)


class _Clipped(torch.autograd.Function):
    """Doubles; its gradient is another where the adjoint is large, or where many of its elements are."""

    @staticmethod
    def forward(ctx, x, count):
        ctx.count = count
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        large = dy.abs() > 0.5
        if len(large.nonzero()) > 2 if ctx.count else large.any():
            return dy * 3, None
        return dy * 5, None


class Clipped(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.linear, self.count = nn.Linear(4, 4), count

    def forward(self, x):
        return _Clipped.apply(self.linear(x), self.count).sum() * 0.1


@pytest.mark.parametrize("count", [False, True], ids=["value", "number of places"])
def test_a_backward_that_branches_on_its_adjoint_is_refused_and_runs_in_pieces(count):
    ours, eager = pair(Clipped(count).double())
    x = torch.randn(3, 4, dtype=torch.float64)
    with pytest.raises(ValueBranchError, match="branches on the values of its adjoint") as refusal:
        ours(x)
    assert "torch.where" in str(refusal.value) and "test_custom_function" in str(refusal.value)
    pieces = ORTModule(copy.deepcopy(eager), breaks="allow")
    for module in (pieces, eager):
        module(x).backward()
    assert_same_gradients(pieces, eager, **DOUBLE)


class _Backwards(torch.autograd.Function):
    """Two Euler steps, whose backward integrates the state and its adjoint back, as neural ODEs do."""

    @staticmethod
    def forward(ctx, weights, x, field, cut):
        for _ in range(2):
            x = x + 0.5 * field(x)
        ctx.save_for_backward(x)
        ctx.field, ctx.cut = field, cut
        return x

    @staticmethod
    def backward(ctx, dx):
        x, parameters, dweights = ctx.saved_tensors[0].clone(), list(ctx.field.parameters()), 0
        for _ in range(2):
            with torch.enable_grad():
                x = x.detach() if ctx.cut else x
                x.requires_grad_()
                y = ctx.field(x)
                grads = torch.autograd.grad(y, [x, *parameters], dx)
            dx = dx + 0.5 * grads[0]
            dweights = dweights + 0.5 * torch.cat([grad.flatten() for grad in grads[1:]])
            x = x - 0.5 * y
        return dweights, dx, None, None


class Ode(nn.Module):
    def __init__(self, cut):
        super().__init__()
        self.field, self.cut = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)), cut

    def forward(self, x):
        weights = torch.cat([parameter.flatten() for parameter in self.field.parameters()])
        return _Backwards.apply(weights, x, self.field, self.cut).sin().sum()


def test_a_backward_that_takes_gradients_by_what_it_computes_is_refused_and_runs_in_pieces():
    ours, eager = pair(Ode(cut=False).double())
    x = torch.randn(3, 2, dtype=torch.float64)
    with pytest.raises(CaptureError, match=r"takes gradients by a tensor that it has computed[\s\S]*detach") as refusal:
        ours(x)
    assert "test_custom_function" in str(refusal.value)
    pieces = ORTModule(copy.deepcopy(eager), breaks="allow")
    for module in (pieces, eager):
        module(x).backward()
    assert_same_gradients(pieces, eager, **DOUBLE)


def test_a_backward_that_cuts_what_it_computes_off_first_has_eagers_gradients():
    ours, eager = pair(Ode(cut=True).double())
    for rows in (3, 4):
        x = torch.randn(rows, 2, dtype=torch.float64)
        for module in (ours, eager):
            module.zero_grad()
            module(x).backward()
        assert_same_gradients(ours, eager, **DOUBLE)


class _Inner(torch.autograd.Function):
    """Rounds; its own gradient passes."""

    @staticmethod
    def forward(ctx, x, straight):
        ctx.straight = straight
        ctx.save_for_backward(x)
        return x.round() if straight else x.sin()

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy if ctx.straight else dy * x.cos(), None


class _Outer(torch.autograd.Function):
    """2 inner(w x) + 3 w x, by a backward that is the derivative, as linear_operator's products have."""

    @staticmethod
    def forward(ctx, x, w, straight):
        ctx.save_for_backward(x, w)
        ctx.straight = straight
        return 2 * _Inner.apply(x * w, straight) + 3 * (x * w)

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dxw = dy * (3 + (2 if ctx.straight else 2 * (x * w).cos()))
        return dxw * w, dxw * x, None


class Nested(nn.Module):
    def __init__(self, straight):
        super().__init__()
        self.inner, self.straight = nn.Linear(4, 4), straight
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return (_Outer.apply(self.inner(x), self.weight, self.straight) ** 2).mean()


@pytest.mark.parametrize("straight", [False, True], ids=["derivative", "straight through"])
def test_a_function_that_calls_another_passes_all_of_its_gradient(straight):
    """The inner one ends a mode without gradients that the trace never saw begin."""
    torch.manual_seed(0)
    ours, eager = pair(Nested(straight).double())
    x = torch.randn(3, 4).double()
    for module in (ours, eager):
        module(x).backward()
    assert_same_gradients(ours, eager, **DOUBLE)
    assert eager.weight.grad.abs().min() > 1e-3


class KeptTogether(torch.autograd.Function):
    """Complex numbers laid out anew; the backward is the derivative."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(context, inputs, output):
        pass

    @staticmethod
    def backward(context, gradient):
        return gradient.clone()


class Turned(KeptTogether):
    """The same with another gradient than the derivative."""

    @staticmethod
    def backward(context, gradient):
        return gradient.conj()


class Spectrum(nn.Module):
    """A function of what the Fourier transform of a layer's output is."""

    def __init__(self, function):
        super().__init__()
        self.function, self.layer = function, nn.Linear(4, 6)

    def forward(self, x):
        return torch.view_as_real(self.function.apply(torch.fft.rfft(self.layer(x))))


def test_gradients_flow_through_a_function_of_complex_numbers():
    ours, eager = pair(Spectrum(KeptTogether).double())
    for rows in (2, 3):
        x = torch.randn(rows, 4, dtype=torch.float64)
        for module in (ours, eager):
            module(x).pow(3).sum().backward()
        assert eager.layer.weight.grad.abs().max() > 0
        assert_same_gradients(ours, eager)


def test_a_backward_of_its_own_for_complex_numbers_is_refused():
    ours, _ = pair(Spectrum(Turned).double())
    with pytest.raises(CaptureError, match="Turned has complex tensors"):
        ours(torch.randn(2, 4, dtype=torch.float64))


class ComputedAnew(torch.autograd.Function):
    """A module's checkpoint, whose backward runs the module once more."""

    @staticmethod
    def forward(context, x, module):
        context.module = module
        context.save_for_backward(x)
        with torch.enable_grad():
            return module(x.detach().requires_grad_()).detach()

    @staticmethod
    def backward(context, gradient):
        with torch.enable_grad():
            x = context.saved_tensors[0].detach().requires_grad_()
            y = context.module(x)
        torch.autograd.backward(y, gradient)
        return x.grad, None


class RunsLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x):
        return ComputedAnew.apply(self.first(x), self.inner)


def test_a_function_may_run_layers_of_the_module():
    """The trial of such a function ends, and not the process: C++ asks the layers' weights for their device."""
    ours, eager = pair(RunsLayers().double())
    for rows in (2, 3):
        x = torch.randn(rows, 4, dtype=torch.float64)
        for module in (ours, eager):
            module(x).pow(3).sum().backward()
        assert eager.inner[0].weight.grad.abs().max() > 0
        assert_same_gradients(ours, eager)


class _Tiled(torch.autograd.Function):
    """A product and its square, whose backward computes the product again, a tile at a time in one buffer."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return (x @ weight.t()).square()

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dx, tile = torch.zeros_like(x), torch.empty(len(x), 2, dtype=x.dtype)
        for start in range(0, len(weight), 2):
            rows = slice(start, start + 2)
            torch.mm(x, weight[rows].t(), out=tile)
            tile.mul_(dy[:, rows])
            dx += 3 * tile @ weight[rows]
        return dx, None


class Tiled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(3, 3), nn.Linear(3, 6)

    def forward(self, x):
        return _Tiled.apply(self.inner(x), self.head.weight)


def test_a_backward_may_write_into_a_buffer_of_its_own():
    ours, eager = pair(Tiled().double())
    for rows in (4, 5):
        x = torch.randn(rows, 3, dtype=torch.float64)
        for module in (ours, eager):
            module.zero_grad()
            module(x).sin().sum().backward()
        assert_same_gradients(ours, eager, **DOUBLE)
