"""What is fed stays where the caller has it, and nobody writes to it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import ontrain
from ontrain.errors import InputError
from ontrain.providers.torch.plan import LENT
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule

ROWS, WIDTH = 256, 128


class Chain(nn.Module):
    """Elementwise operators of which each may overwrite what the one before it made."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of x's shape."""
        return ((x + 1).tanh() * self.scale + x).exp().neg()


def _batch() -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def _transposed() -> torch.Tensor:
    return _batch().T.contiguous().T


def _inside() -> torch.Tensor:
    return torch.cat([_batch(), _batch()])[ROWS // 2 : ROWS // 2 + ROWS]


def _strided() -> torch.Tensor:
    return _batch().repeat_interleave(2, 1)[:, ::2]


def _expanded() -> torch.Tensor:
    return _batch()[:1].expand(ROWS, WIDTH)


def _negated() -> torch.Tensor:
    return torch.complex(_batch(), _batch()).conj().imag


LAYOUTS = [_batch, _transposed, _inside, _strided, _expanded, _negated]


def test_the_samples_are_large_enough_to_be_lent() -> None:
    assert _batch().nbytes > LENT


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_eagers_and_the_feed_stays_as_it_is(layout: Callable[[], torch.Tensor]) -> None:
    eager = Chain()
    ours, x = copy.deepcopy(eager), layout()
    module, before = ORTModule(ours), x.clone()
    for _ in range(3):
        for called in (eager, module):
            called(x).square().mean().backward()
        assert torch.equal(x, before)
    torch.testing.assert_close(ours.scale.grad, eager.scale.grad, rtol=1e-12, atol=1e-12)


class Views(Chain):
    """Parts of the batch in other shapes and orders."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [WIDTH, ROWS / 2 - 3]."""
        return (x.reshape(ROWS // 2, 2 * WIDTH)[3:, ::2] * self.scale).T


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_of_a_feed_show_its_own_elements(layout: Callable[[], torch.Tensor]) -> None:
    eager, x = Views(), layout()
    ours = copy.deepcopy(eager)
    results = [called(x) for called in (eager, ORTModule(ours))]
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-12)
    for result in results:
        result.square().sum().backward()
    torch.testing.assert_close(ours.scale.grad, eager.scale.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_input_that_wants_gradients_is_lent_too(layout: Callable[[], torch.Tensor]) -> None:
    eager = Chain()
    module, gradients = ORTModule(copy.deepcopy(eager)), []
    for called in (eager, module):
        x = layout().detach().requires_grad_()
        called(x).mul(layout()).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-12, atol=1e-12)


def test_adjoints_of_every_layout_are_read_as_they_are() -> None:
    eager = Chain()
    ours, x = copy.deepcopy(eager), _batch()
    module = ORTModule(ours)
    for layout in LAYOUTS:
        adjoint = layout()
        before = adjoint.clone()
        for called in (eager, module):
            called(x).backward(adjoint)
        assert torch.equal(adjoint, before)
        torch.testing.assert_close(ours.scale.grad, eager.scale.grad, rtol=1e-12, atol=1e-12)


def test_an_input_that_backward_reads_may_not_be_written_to_before_it() -> None:
    module, x = ORTModule(nn.Linear(WIDTH, 4).double()), _batch()
    result = module(x)
    x.zero_()
    with pytest.raises(InputError, match=r"input 'input' was changed in place between forward and backward"):
        result.sum().backward()
    eager = nn.Linear(WIDTH, 4).double()(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="inplace operation"):
        eager.sum().backward()


def test_an_input_that_backward_does_not_read_may_be_written_to() -> None:
    module, x = ORTModule(nn.Linear(WIDTH, 4).double()), _batch()
    module.weight.requires_grad_(False)
    result = module(x)
    x.zero_()
    result.sum().backward()
    assert torch.equal(module.bias.grad, torch.full((4,), float(ROWS), dtype=torch.float64))


def test_inference_tensors_are_lent() -> None:
    with torch.inference_mode():
        x = _batch()
    eager = Chain()
    torch.testing.assert_close(ORTModule(copy.deepcopy(eager))(x), eager(x))


def test_an_input_returned_as_it_is_is_not_mixed_up() -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return y, x + y

    module, x, y = ORTModule(Both()), _batch(), _batch() * 2
    for _ in range(2):
        first, second = module(x, y)
        assert torch.equal(first, y)
        assert torch.equal(second, x + y)


class Loss(nn.Module):
    """A loss of a large batch."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = Chain()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a scalar."""
        return self.chain(x).square().mean()


def test_a_trainers_step_leaves_its_batch_as_it_is() -> None:
    torch.manual_seed(0)
    loss, x = Loss().float(), _inside().float()
    before, expected = x.clone(), loss(x).item()
    description = {"inputs": [("x", ["rows", WIDTH])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(loss, description, optim.SGDConfig(lr=0.1))
    first = float(trainer.train_step(x))
    assert first == pytest.approx(expected, rel=1e-5)
    assert float(trainer.train_step(x)) < first
    assert torch.equal(x, before)


def test_arrays_that_may_not_be_written_to_are_read(tmp_path: object) -> None:
    path = f"{tmp_path}/chain.onnx"
    chain, x = Chain().float(), _batch().float()
    torch.onnx.export(chain, (x,), path, dynamo=False, opset_version=17)
    session = ontrain.InferenceSession(path, providers=["TorchExecutionProvider"])
    array = x.numpy().copy()
    array.setflags(write=False)
    (name,) = [value.name for value in session.get_inputs()]
    for feed in (array, np.asfortranarray(array), array[::-1][::-1], np.concatenate([array, array])[ROWS:]):
        np.testing.assert_allclose(session.run(None, {name: feed})[0], chain(x).detach().numpy(), rtol=2e-5)
    assert np.array_equal(array, x.numpy())
