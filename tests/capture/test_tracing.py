"""Modules that ask whether somebody compiles them, as libraries do: what eager computes is what is captured."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.capture import capture
from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule


class Masked(nn.Module):
    """A layer whose mask has a default in eager alone."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x, mask=None):
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.ones(x.shape[0], 2, dtype=x.dtype).tril()
        return (self.layer(x) * mask[:, :1]).sum()


class Shortened(Masked):
    """A layer that reads an attribute of what it has for eager alone."""

    def forward(self, x, mask=None):
        scale = None if torch.compiler.is_exporting() else x.mean()
        return self.layer(x).sum() * scale.square()


class Joined(Masked):
    """A layer that joins rows of a default that compilers have no rows of."""

    def forward(self, x, mask=None):
        ones = torch.ones(1 if torch.compiler.is_compiling() else x.shape[0], 1, dtype=x.dtype)
        return torch.cat([self.layer(x), ones], 1).square().sum()


class Asserted(Masked):
    """A layer that takes two tensors in a tuple in eager alone, and asserts that there are two."""

    def forward(self, x, mask=None):
        if not torch.compiler.is_compiling() and mask is None:
            x, mask = x[:, :2], x[:, 2:]
        assert mask is not None
        return (self.layer(torch.cat([x, mask.exp()], 1))).sum()


class Tabled(Masked):
    """A layer that looks its factor up in a table that lacks one for compilers."""

    def forward(self, x, mask=None):
        return self.layer(x).sum() * {"eager": 3}["compiled" if torch.compiler.is_compiling() else "eager"]


class Either(Masked):
    """A layer that works both ways, and does otherwise for compilers."""

    def forward(self, x, mask=None):
        return self.layer(x).sum() * (2 if torch.compiler.is_compiling() else 3)


def results(module, x):
    x = x.clone().requires_grad_()
    module.zero_grad()
    y = module(x)
    y.backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in module.parameters())]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [Masked, Shortened, Joined, Asserted, Tabled])
def test_what_compilers_would_miss_is_captured_as_eager_has_it(kind):
    plain = kind().double()
    module = ORTModule(plain)
    for rows in (4, 7):
        x = torch.randn(rows, 3, dtype=torch.float64)
        for mine, eager in zip(results(module, x), results(plain, x), strict=True):
            torch.testing.assert_close(mine, eager, rtol=1e-12, atol=1e-12)
    assert module._engine.captures == 1


def test_what_a_module_does_for_compilers_is_kept_where_it_works():
    plain, x = Either(), torch.randn(4, 3)
    torch.testing.assert_close(ORTModule(plain)(x), plain.layer(x).sum() * 2)


def test_what_fails_in_eager_too_is_refused_by_its_line():
    class Wrong(Masked):
        def forward(self, x, mask=None):
            return self.layer(x).sum() * mask[0]

    with pytest.raises(CaptureError, match=r"NoneType[\s\S]*test_tracing.py"):
        ORTModule(Wrong())(torch.randn(4, 3))


def test_a_layer_that_forward_converts_is_refused_by_its_line():
    class Converted(Masked):
        def forward(self, x, mask=None):
            return self.layer.to(torch.float64)(x.double()).sum()

    with pytest.raises(CaptureError, match=r"converts its Linear to torch.float64[\s\S]*layer\.to[\s\S]*before the"):
        ORTModule(Converted())(torch.randn(4, 3))
    y = ORTModule(Converted().double())(torch.randn(4, 3))
    assert y.requires_grad


class OfSizes(Masked):
    """Makes a tensor of sizes, one of which follows from values, and chooses by a mask of bytes."""

    def forward(self, x, mask=None):
        y = self.layer(x)
        sizes = torch.as_tensor([[y[y.sum(1) > 0].shape[0]], [x.shape[0]]])
        mask = (x > 0).to(torch.uint8) * 3
        chosen = torch.where(mask[:, :1], y, y.sin()) * mask.all(1, keepdim=True) * 2 + mask.any(0).sum()
        return (chosen.sum(0) * sizes.to(y.dtype)).sum()


def test_sizes_in_a_list_vary_and_a_mask_of_bytes_chooses_as_in_eager():
    plain = OfSizes().double()
    module = ORTModule(plain)
    for rows in (3, 5, 6):
        x = torch.randn(rows, 3, dtype=torch.float64)
        for mine, eager in zip(results(module, x), results(plain, x), strict=True):
            torch.testing.assert_close(mine, eager, rtol=1e-12, atol=1e-12)
    assert module._engine.captures == 1


def _is_exported():
    return torch.compiler.is_exporting()


class Solved(nn.Module):
    """A triangular system that exporters get as a loop over its rows, as layers of delta rules have."""

    def forward(self, a, b):  # a: [N, K, K], b: [N, K]
        if not _is_exported():
            return torch.linalg.solve_triangular(a, b.unsqueeze(-1), upper=False, unitriangular=True).squeeze(-1)
        rows = [b[:, 0]]
        for i in range(1, a.shape[-1]):
            rows.append(b[:, i] - (a[:, i, :i] * torch.stack(rows, -1)).sum(-1))
        return torch.stack(rows, -1)


def test_a_system_is_solved_where_exporters_get_a_loop():
    a, b = torch.randn(3, 16, 16, dtype=torch.float64).tril() / 4, torch.randn(3, 16, dtype=torch.float64)
    nodes = list(capture(Solved(), (a, b)).model.graph)
    assert len(nodes) < 10
    module = ORTModule(Solved())
    torch.testing.assert_close(module(a, b), Solved()(a, b), rtol=1e-12, atol=1e-12)
    assert not torch.compiler.is_exporting()


class Noisy(nn.Module):
    """Noise whose bounds follow from the length, as NEFTune adds it to embeddings."""

    def forward(self, x):  # x: [N, L]
        bound = 5 / torch.sqrt(torch.tensor(x.shape[1]))
        return x + torch.zeros_like(x).uniform_(-bound, bound)


def test_bounds_of_noise_follow_from_the_length_in_one_graph():
    module = ORTModule(Noisy())
    for length in (4, 9, 64):
        x = torch.randn(500, length, dtype=torch.float64, requires_grad=True)
        y = module(x)
        y.sum().backward()
        noise, bound = (y - x).detach(), 5 / length**0.5
        assert 0.99 * bound < noise.max() <= bound and -bound <= noise.min() < -0.99 * bound
        assert abs(noise.mean()) < 0.1 * bound
        torch.testing.assert_close(x.grad, torch.ones_like(x))
        assert not torch.equal(module(x), y)
    assert module.__dict__["_engine"].captures == 1


class Inner(nn.Module):
    """A layer in a layer, which takes lengths in its signature alone."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x, lengths=None):
        x = self.layer(x)
        if lengths is not None:
            raise ValueError("no lengths")
        return x.tanh()


class Outer(Inner):
    """Calls one that raises an error."""

    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x, lengths=None):
        return self.inner(self.layer(x), lengths)


class Trying(nn.Module):
    """Hands lengths to those layers that take them."""

    def __init__(self, layers):
        super().__init__()
        self.layers, self.last = nn.ModuleList(layers), nn.Linear(3, 1)

    def forward(self, x):
        for layer in self.layers:
            try:
                x = layer(x, lengths=2)
            except (TypeError, ValueError):
                x = layer(x)
        return self.last(x).square().sum()


@pytest.mark.parametrize("kinds", [(nn.Tanh, Inner), (Outer, nn.Tanh), (Inner, Outer)])
def test_forward_may_catch_the_errors_of_its_layers(kinds):
    module = Trying([kind() for kind in kinds]).double()
    ours = ORTModule(copy.deepcopy(module))
    for rows in (2, 4):
        x = torch.randn(rows, 3, dtype=torch.float64)
        for each in (ours, module):
            each.zero_grad()
            each(x).backward()
        torch.testing.assert_close(ours(x), module(x))
        for a, b in zip(ours.module.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
