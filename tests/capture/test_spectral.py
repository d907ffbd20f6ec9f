"""Fourier transforms in forward: of any length, one capture for all of them, gradients and their gradients."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import fft, nn

from ontrain.capture import capture
from ontrain.training.ortmodule import ORTModule


class Spectral(nn.Module):
    def __init__(self, transform):
        super().__init__()
        self.transform, self.scale = transform, nn.Parameter(torch.linspace(0.5, 1.5, 4).double())

    def forward(self, x):
        return self.transform(x * self.scale[: x.shape[0], None]).square().mean()


def planes(x):
    return x[:, None] * torch.linspace(-1, 1, 120, dtype=torch.float64)[:, None]


def turned(z):
    return z * torch.complex(torch.tensor(1.0).double(), torch.tensor(2.0).double())


CASES = {
    "half a spectrum": lambda x: fft.rfft(x).abs(),
    "orthonormal": lambda x: torch.view_as_real(fft.rfft(x, norm="ortho")),
    "divided going forward": lambda x: torch.view_as_real(fft.fft(x, norm="forward")),
    "and back": lambda x: fft.ifft(turned(fft.fft(x))).real,
    "back, orthonormal": lambda x: fft.ifft(turned(fft.fft(x, norm="ortho")), norm="ortho").imag,
    "back by nothing": lambda x: fft.ifft(fft.fft(x), norm="forward").real,
    "to an even length": lambda x: fft.irfft(turned(fft.rfft(x)), n=1300),
    "to an odd length": lambda x: fft.irfft(turned(fft.rfft(x)), n=1301, norm="ortho"),
    "to its own length": lambda x: fft.irfft(turned(fft.rfft(x)), n=x.shape[-1]),
    "of images": lambda x: fft.ifft2(turned(fft.fft2(planes(x)))).real,
    "of real images": lambda x: fft.irfft2(turned(fft.rfft2(planes(x))), s=(120, x.shape[-1])),
    "along the first axis": lambda x: torch.view_as_real(fft.fft(x.T, dim=0)),
    "a long convolution": lambda x: fft.irfft(fft.rfft(x, n=1200) * fft.rfft(x.flip(-1), n=1200), n=1200)[:, :90],
    "of a real spectrum": lambda x: fft.hfft(fft.ihfft(x)),
}


def expect_one_capture(module, shapes):
    """Train on batches of these numbers of rows and lengths: as eager trains, by one capture for all of them."""
    ours = ORTModule(module)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*captured anew")
        for rows, length in shapes:
            x = torch.randn(rows, length, dtype=torch.float64, generator=torch.Generator().manual_seed(length))
            module.zero_grad()
            loss = module(x)
            loss.backward()
            wanted = module.scale.grad.clone()
            module.zero_grad()
            result = ours(x)
            result.backward()
            torch.testing.assert_close(result, loss, rtol=1e-10, atol=0)
            torch.testing.assert_close(module.scale.grad, wanted, rtol=1e-9, atol=1e-13)
    assert len(ours._engine.entries) == 1


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(2)
def test_transforms_of_varying_lengths_are_captured_once(name):
    expect_one_capture(Spectral(CASES[name]), ((2, 100), (3, 257), (4, 512), (2, 97)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("long", [64, 200])
def test_spectrograms_of_recordings_of_any_length_are_captured_once(centred, long):
    window = torch.hann_window(long, dtype=torch.float64)
    module = Spectral(
        lambda x: torch.stft(x, long, long // 4, window=window, center=centred, return_complex=True).abs() + 1
    )
    expect_one_capture(module, ((2, 1000), (3, 1601), (4, 900), (2, 2048)))


def test_a_transform_longer_than_any_matrix():
    module, x = Spectral(CASES["half a spectrum"]), torch.randn(2, 100_000, dtype=torch.float64)
    torch.testing.assert_close(ORTModule(module)(x), module(x), rtol=1e-10, atol=0)


@pytest.mark.parametrize("length", [8, 200])
def test_short_transforms_are_products_and_others_are_not(length):
    graph = capture(Spectral(CASES["half a spectrum"]), (torch.randn(2, length).double(),)).model.graph
    assert any(node.op_type == "DFT" for node in graph) == (length == 200)


def test_gradients_of_gradients():
    module = Spectral(CASES["half a spectrum"])

    def penalty(model):
        x = torch.randn(2, 130, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
        module.zero_grad()
        (slope,) = torch.autograd.grad(model(x), x, create_graph=True)
        slope.square().sum().backward()
        return module.scale.grad.clone()

    torch.testing.assert_close(penalty(ORTModule(module)), penalty(module), rtol=1e-8, atol=1e-12)
