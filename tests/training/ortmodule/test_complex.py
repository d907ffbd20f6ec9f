"""Modules with complex parameters, buffers, inputs and outputs train as in eager PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.errors import CaptureError
from ontrain.training import optim
from ontrain.training.ortmodule import ORTModule
from tests.training.conftest import make_trainer

_generator = torch.Generator().manual_seed(5)


def _numbers(*shape):
    return torch.randn(*shape, dtype=torch.complex128, generator=_generator)


def _agree(module, *batches):
    """Losses, results and gradients by parameters and inputs are eager's."""
    wrapped = ORTModule(copy.deepcopy(module))
    for batch in batches:
        results = []
        for trained in (module, wrapped):
            trained.zero_grad()
            inputs = [x.clone().requires_grad_(x.is_floating_point() or x.is_complex()) for x in batch]
            y = trained(*inputs)
            (torch.view_as_real(y) if y.is_complex() else y).pow(2).mean().backward()
            results.append([y.detach(), *[p.grad for p in trained.parameters()], *[x.grad for x in inputs]])
        for ours, theirs in zip(results[1], results[0], strict=True):
            assert (ours is None) == (theirs is None)
            if theirs is not None:
                assert ours.dtype == theirs.dtype
                torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


class Function(nn.Module):
    def __init__(self, function, *shapes):
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList([nn.Parameter(_numbers(*shape)) for shape in shapes])

    def forward(self, x):
        return self.function(x, *self.weights)


def _written(x, w):
    y = torch.zeros(x.shape[0], 5, dtype=x.dtype)
    y[:, 1:4] = x[:, :3] * w
    return y


def _single(w):
    """Some numbers in single precision; eager raises them to the other operand's double precision."""
    return w.detach().to(torch.complex64)


FUNCTIONS = {
    "einsum": (lambda x, w, v: torch.einsum("bi,ij,bj->b", x, w, v.expand(x.shape[0], 3)), (4, 3), (3,)),
    "matmul": (lambda x, w: x @ w, (4, 3)),
    "matmul by a conjugate": (lambda x, w: x @ w.conj().mT, (3, 4)),
    "matmul by an adjoint": (lambda x, w: x @ w.mH, (3, 4)),
    "linear": (nn.functional.linear, (3, 4), (3,)),
    "conv1d": (lambda x, w, b: nn.functional.conv1d(x[:, None], w, b), (2, 1, 3), (2,)),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w, beta=0.5, alpha=2), (4, 3), (3,)),
    "abs": (lambda x, w: (x * w).abs(), (4,)),
    "angle": (lambda x, w: (x * w).angle(), (4,)),
    "conj": (lambda x, w: x.conj() * w, (4,)),
    "view_as_real": (lambda x, w: torch.view_as_real(x * w), (4,)),
    "division": (lambda x, w: x / w, (4,)),
    "a real number over it": (lambda x, w: 2.0 / (x + w), (4,)),
    "exp": (lambda x, w: torch.exp(x * w), (4,)),
    "log": (lambda x, w: torch.log(x * w), (4,)),
    "sqrt": (lambda x, w: torch.sqrt(x * w), (4,)),
    "a power": (lambda x, w: (x * w) ** 3, (4,)),
    "a power that is no whole number": (lambda x, w: (x * w) ** 1.5, (4,)),
    "a complex power": (lambda x, w: x**w, (4,)),
    "sin": (lambda x, w: torch.sin(x * w), (4,)),
    "cos": (lambda x, w: torch.cos(x * w), (4,)),
    "sinh": (lambda x, w: torch.sinh(x * w), (4,)),
    "cosh": (lambda x, w: torch.cosh(x * w), (4,)),
    "tanh": (lambda x, w: torch.tanh(x * w), (4,)),
    "tan": (lambda x, w: torch.tan(x * w), (4,)),
    "asin": (lambda x, w: torch.asin(x * w), (4,)),
    "acos": (lambda x, w: torch.acos(x * w), (4,)),
    "atan": (lambda x, w: torch.atan(x * w), (4,)),
    "asinh": (lambda x, w: torch.asinh(x * w), (4,)),
    "acosh": (lambda x, w: torch.acosh(x * w), (4,)),
    "atanh": (lambda x, w: torch.atanh(x * w), (4,)),
    "sigmoid": (lambda x, w: torch.sigmoid(x * w), (4,)),
    "sgn": (lambda x, w: torch.sgn(x * w), (4,)),
    "norm": (lambda x, w: torch.linalg.vector_norm(x * w, dim=-1), (4,)),
    "where with a real number": (lambda x, w: torch.where(x.real > 0, x * w, 1.0), (4,)),
    "masked_fill": (lambda x, w: (x * w).masked_fill(x.imag > 0, 2.0), (4,)),
    "pad": (lambda x, w: nn.functional.pad(x * w, (1, 2), value=1.5), (4,)),
    "cat with real": (lambda x, w: torch.cat([x * w, x.real], -1), (4,)),
    "written into zeros": (_written, (3,)),
    "sum and mean": (lambda x, w: (x * w).sum(0) + (x * w).mean(), (4,)),
    "var and std": (lambda x, w: (x * w).var(0) + (x * w).std(-1, correction=0).sum() + (x * w).std(), (4,)),
    "var_mean": (lambda x, w: sum(torch.var_mean(x * w, 0)), (4,)),
    "var_mean by flags": (lambda x, w: sum(torch.var_mean(x * w, unbiased=False)), (4,)),
    "std_mean": (lambda x, w: sum(torch.std_mean(x * w, -1, correction=0, keepdim=True)), (4,)),
    "eye": (lambda x, w: x * w + torch.eye(4, dtype=torch.complex128)[: len(x)], (4,)),
    "cumprod": (lambda x, w: (x * w).cumprod(-1), (4,)),
    "cumprod with zeros": (lambda x, w: (x * w * (x.real > 0)).cumprod(-1), (4,)),
    "cumsum": (lambda x, w: (x * w).cumsum(-1), (4,)),
    "ones": (lambda x, w: x * w + torch.ones(4, dtype=torch.complex128), (4,)),
    "a real factor": (lambda x, w: x.real * w, (4,)),
    "a factor in single precision": (lambda x, w: _single(w) * x, (4,)),
    "a factor in single precision by real": (lambda x, w: _single(w) * x.real, (4,)),
    "single precision over real": (lambda x, w: _single(w) / (x.real + 9), (4,)),
    "einsum with single precision": (lambda x, w: torch.einsum("i,bi->bi", _single(w), x), (4,)),
    "fft": (lambda x, w: torch.fft.fft(x * w), (4,)),
    "ifft of both axes": (lambda x, w: torch.fft.ifft2((x * w)[:, None] * x[..., None].conj(), norm="ortho"), (4,)),
    "rfftn": (lambda x, w: torch.fft.rfftn((x * w).real[:, None] * x.imag[..., None], dim=(1, 2)), (4,)),
    "irfftn": (lambda x, w: torch.fft.irfftn((x * w)[:, :, None] * x[:, None], s=(4, 6), dim=(1, 2)), (4,)),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_complex_parameters_and_inputs_has_eagers_gradients(name):
    function, *shapes = FUNCTIONS[name]
    _agree(Function(function, *shapes), (_numbers(2, 4),), (_numbers(3, 4),))


class Spectral(nn.Module):
    """A layer of a Fourier neural operator, with a buffer that forward updates."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(_numbers(2, 3, 4))
        self.register_buffer("last", torch.zeros(3, dtype=torch.complex128))
        self.frozen = nn.Parameter(_numbers(3), requires_grad=False)

    def forward(self, x):
        modes = torch.einsum("bix,iox->box", torch.fft.rfft(x)[..., :4], self.weight)
        if self.training:
            self.last.copy_(modes.detach().mean((0, 2)))
        full = torch.zeros(x.shape[0], 3, 9, dtype=modes.dtype)
        full[..., :4] = modes * self.frozen[:, None]
        return torch.fft.irfft(full, n=16)


def test_a_spectral_layer_trains_and_updates_its_complex_buffer():
    module = Spectral()
    wrapped = ORTModule(copy.deepcopy(module))
    for batch in (2, 3):
        x = torch.randn(batch, 2, 16, dtype=torch.float64, generator=_generator)
        module(x), wrapped(x)
        torch.testing.assert_close(wrapped.last, module.last)
    _agree(module, (x,), (x[:2],))


def test_an_optimizers_steps_on_complex_parameters_are_followed():
    module = Spectral()
    wrapped = ORTModule(copy.deepcopy(module))
    x = torch.randn(2, 2, 16, dtype=torch.float64, generator=_generator)
    losses = []
    for trained in (module, wrapped):
        optimizer = torch.optim.Adam([p for p in trained.parameters() if p.requires_grad], lr=0.05)
        losses.append([])
        for _ in range(4):
            optimizer.zero_grad()
            loss = trained(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0][0] > losses[0][-1]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-10, atol=0)


def test_a_complex_parameter_in_new_memory_is_followed():
    module = Spectral()
    wrapped = ORTModule(copy.deepcopy(module))
    x = torch.randn(2, 2, 16, dtype=torch.float64, generator=_generator)
    wrapped(x)
    for trained in (module, wrapped):
        for parameter in trained.parameters():
            parameter.data = parameter.data * 2
    torch.testing.assert_close(wrapped(x), module(x))


def test_a_trainer_refuses_complex_parameters_with_a_way_out():
    desc = {"inputs": [("x", ["b", 2, 16]), ("y", ["b", 3, 16])], "outputs": [("loss", [], True), ("z", ["b", 3, 16])]}
    trainer = make_trainer(Spectral(), optim.SGDConfig(lr=0.1), desc, loss_fn=nn.functional.mse_loss)
    x, y = torch.randn(2, 2, 16, dtype=torch.float64), torch.randn(2, 3, 16, dtype=torch.float64)
    with pytest.raises(CaptureError, match="parameter 'weight' is torch.complex128") as refusal:
        trainer.train_step(x, y)
    assert "ORTModule" in str(refusal.value)


class RunningMean(nn.Module):
    """A layer that keeps the running mean of its complex results in a buffer, as complex batch normalisations do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=torch.complex128)
        self.register_buffer("mean", torch.zeros(2, dtype=torch.complex128))

    def forward(self, x):
        z = self.linear(x)
        self.mean = 0.9 * self.mean + 0.1 * z.mean(0).detach()
        return (z - self.mean).abs().square().sum()


def test_a_complex_buffer_that_forward_assigns():
    eager = RunningMean()
    ours = ORTModule(copy.deepcopy(eager))
    for rows in (2, 3):
        x = torch.randn(rows, 3, dtype=torch.complex128)
        for module in (ours, eager):
            module.zero_grad()
            module(x).backward()
        torch.testing.assert_close(ours.mean, eager.mean)
        torch.testing.assert_close(ours.linear.weight.grad, eager.linear.weight.grad)
