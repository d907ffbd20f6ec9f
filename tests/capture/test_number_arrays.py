"""Arrays of numpy that forward makes of whole numbers in tensors: the numbers vary, and lead to sizes and branches."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from ontrain.capture import capture
from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import assert_same_gradients, pair

with contextlib.suppress(ImportError):
    import scipy.optimize  # noqa: F401 where it is imported, arrays are also those that it takes

DOUBLE = dict(rtol=1e-10, atol=1e-12)


class Periods(nn.Module):
    """TimesNet's block: folds a series by the periods of its strongest frequencies, convolves, and unfolds it."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x):
        spectrum = torch.fft.rfft(x, dim=1).abs()
        strengths = spectrum.mean(0).mean(-1)
        strengths[0] = 0
        top = strengths.topk(2).indices.detach().cpu().numpy()
        periods, weights = x.shape[1] // top, spectrum.mean(-1)[:, top]
        batch, steps, width = x.shape
        results = []
        for i in range(2):
            period = periods[i]
            length = -(-steps // period) * period
            h = x if length == steps else torch.cat([x, x.new_zeros(batch, length - steps, width)], 1)
            h = h.reshape(batch, length // period, period, width).permute(0, 3, 1, 2)
            results.append(self.convolution(h).permute(0, 2, 3, 1).reshape(batch, -1, width)[:, :steps])
        return x + (torch.stack(results, -1) * weights.softmax(1)[:, None, None]).sum(-1)


def test_a_series_is_folded_by_the_periods_that_each_batch_has():
    ours, eager = pair(Periods().double())
    if torch.__version__ < (2, 12):  # asks whether a convolution's rows, counted by a value, are fewer than three
        with pytest.raises(CaptureError):
            ours(torch.randn(2, 12, 2, dtype=torch.float64))
        return
    steps = torch.arange(12.0, dtype=torch.float64)
    seen = set()
    for batch, (a, b) in ((2, (1, 3)), (3, (4, 2)), (2, (3, 1))):
        waves = (2 * torch.pi * torch.tensor([[a], [b]]) * steps / 12).sin() * torch.tensor([[2.0], [1.0]])
        x = waves.sum(0)[None, :, None] * torch.rand(batch, 1, 2, dtype=torch.float64).add(0.5)
        seen.add((a, b))
        for module in (ours, eager):
            y = module(x)
            y.square().sum().backward()
        torch.testing.assert_close(ours(x), eager(x), **DOUBLE)
        assert_same_gradients(ours, eager, **DOUBLE)
    assert len(seen) == 3


class Places(nn.Module):
    """Reads and writes rows by an array, and reckons with its numbers."""

    def forward(self, x, places):
        array = places.numpy().reshape(-1, 2)
        y = x * int(array.sum())
        y[array[0]] = y[array[1]] * 2
        return y[: array.max()]


def test_an_array_indexes_and_is_reckoned_with():
    ours, eager = pair(Places())
    for numbers in ([0, 1, 2, 3], [3, 0, 1, 2], [1, 1, 4, 0]):
        places = torch.tensor(numbers)
        x = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3)
        torch.testing.assert_close(ours(x[0], places), eager(x[0], places))


def test_an_array_of_fractions_is_refused_by_its_line():
    class Fractions(nn.Module):
        def forward(self, x):
            return x * float(x.detach().numpy().mean())

    with pytest.raises(CaptureError, match=r"test_number_arrays\.py"):
        capture(Fractions(), (torch.randn(3),))
    x = torch.randn(3)
    torch.testing.assert_close(ORTModule(Fractions(), breaks="allow")(x), Fractions()(x))
