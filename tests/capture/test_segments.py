"""Segments, drawn windows, bins, and numbers beside numbers: eager's results and gradients, at sizes that vary."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule


class Segments(nn.Module):
    def __init__(self, initial):
        super().__init__()
        self.layer, self.initial = nn.Linear(4, 4), initial

    def forward(self, x, lengths):
        y, offsets = self.layer(x), torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        results = [torch.segment_reduce(y, "sum", offsets=offsets, initial=self.initial)]
        return results + [
            torch.segment_reduce(y, kind, lengths=lengths, initial=self.initial)
            for kind in ("sum", "mean", "max", "min", "prod")
        ]


@pytest.mark.parametrize("initial", [None, 0.5])
def test_segments_of_any_number_and_length_are_one_capture(initial):
    eager = Segments(initial).double()
    ours = ORTModule(copy.deepcopy(eager))
    for lengths in ([2, 3, 1], [4, 1, 4], [3, 2, 1, 1]):
        results = []
        for module in (ours, eager):
            generator = torch.Generator().manual_seed(4)
            x = torch.randn(sum(lengths), 4, generator=generator, dtype=torch.float64, requires_grad=True)
            y = module(x, torch.tensor(lengths))
            module.zero_grad()
            torch.cat(y).sin().sum().backward()
            results.append((*y, x.grad, *(parameter.grad for parameter in module.parameters())))
        torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-12)
    assert ours._engine.captures == 1


@pytest.mark.parametrize("rank", [2, 3])
def test_windows_at_drawn_places_are_eagers(rank):
    samples = torch.rand(2, 3, rank, dtype=torch.float64)
    layer = (nn.FractionalMaxPool2d if rank == 2 else nn.FractionalMaxPool3d)(
        (2, 3, 2)[:rank], output_size=(4, 3, 1)[:rank], return_indices=True, _random_samples=samples
    )
    ours = ORTModule(layer)
    results = []
    x = torch.randn(2, 3, *(9, 8, 5)[:rank], dtype=torch.float64)
    for module in (ours, layer):
        leaf = x.clone().requires_grad_()
        y, places = module(leaf)
        y.sin().sum().backward()
        results.append((y, places, leaf.grad))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


class Beside(nn.Module):
    def forward(self, x, y):
        return torch.nextafter(x, y)


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float64, torch.int64), (torch.float32, torch.int32)])
def test_the_next_number_is_eagers_to_the_bit(dtype, bits):
    kind, generator = torch.finfo(dtype), torch.Generator().manual_seed(2)
    any_bits = torch.randint(torch.iinfo(bits).min, torch.iinfo(bits).max, (20_000,), generator=generator, dtype=bits)
    x = any_bits.view(dtype)
    edges = [0.0, -0.0, 1.0, torch.inf, -torch.inf, torch.nan, kind.max, -kind.max, kind.tiny, 2 * kind.tiny]
    edges += [kind.tiny / 2, kind.tiny * kind.eps, 2 * kind.tiny / kind.eps] + [2.0**i for i in range(-126, 127)]
    a, b = torch.meshgrid(*[torch.tensor(edges, dtype=dtype)] * 2, indexing="ij")
    x, y = torch.cat([x, a.flatten()]), torch.cat([x.flip(0), b.flatten()])
    torch.testing.assert_close(ORTModule(Beside())(x, y), torch.nextafter(x, y), rtol=0, atol=0, equal_nan=True)


class Places(nn.Module):
    def forward(self, x):
        return torch.nonzero_static(x, size=4, fill_value=-7)


def test_a_fixed_number_of_places_is_found_at_any_size():
    ours = ORTModule(Places())
    for shape in ((3, 4), (2, 5), (3, 3), (0, 3)):
        for x in (torch.randint(2, shape), torch.zeros(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.int64)):
            assert torch.equal(ours(x), torch.nonzero_static(x, size=4, fill_value=-7))


class Bins(nn.Module):
    def forward(self, x, weight):
        edges = torch.tensor([-1.0, 0.0, 0.5, 2.0])
        histograms = (torch.histogram(x, bins=5), torch.histogram(x, edges, density=True))
        return *histograms, torch.histogram(x, bins=3, range=(-1.0, 1.0), weight=weight)


def test_bins_are_eagers():
    x, weight = torch.tensor([-1.0, 0.0, 0.5, 0.5, 2.0, 3.0, 0.1]), torch.arange(7.0)
    torch.testing.assert_close(
        [tuple(pair) for pair in ORTModule(Bins())(x, weight)], [tuple(pair) for pair in Bins()(x, weight)]
    )


class Boxes(nn.Module):
    def forward(self, x, weight):
        edges = [torch.tensor([-1.0, 0.0, 0.5, 2.0]), torch.tensor([-2.0, 0.0, 1.0]), torch.tensor([-9.0, 9.0])]
        return (
            *torch.histogramdd(x[:, :2], bins=[2, 3]),
            *torch.histogramdd(x, bins=[2, 3, 2], range=[-1.0, 1.0, -2.0, 2.0, 0.0, 1.0], weight=weight),
            torch.histogramdd(x, edges, density=True)[0],
            torch.histogramdd(x[:, :1], bins=[4])[0],
        )


def test_boxes_are_eagers():
    ours = ORTModule(Boxes())
    for rows in (9, 20, 3):
        x, weight = torch.randn(rows, 3), torch.arange(float(rows))
        for mine, theirs in zip(ours(x, weight), Boxes()(x, weight), strict=True):
            torch.testing.assert_close(mine, theirs)
