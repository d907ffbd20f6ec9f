"""What a no_grad block computes has no gradient, what only passes through it keeps its own; within autocast too."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule

pytestmark = pytest.mark.sampled(4)


class Net(nn.Module):
    """A linear layer, and a function of it and of the input."""

    def __init__(self, function, layer=None):
        super().__init__()
        self.layer = layer if layer is not None else nn.Linear(4, 4)
        self.function = function

    def forward(self, x):
        return self.function(self.layer, x).float().sum()


def a_norm_of_the_weight(layer, x):
    with torch.no_grad():
        size = layer.weight.norm()
    return layer(x) / size


def a_value_cast_to_the_dtype_that_it_has(layer, x):
    y = layer(x)
    with torch.no_grad():
        size = y.float().contiguous().flatten(1).square().sum()
    return y / size


def a_dropout_that_drops_nothing(layer, x):
    y = layer(x)
    with torch.no_grad():
        size = nn.functional.dropout(y, 0.5, training=False).square().sum()
    return y / size


def a_layer_first_without_and_then_with_gradient(layer, x):
    with torch.no_grad():
        target = layer(x)
    return layer(x + target) * target


def a_value_read_in_two_blocks(layer, x):
    y = layer(x)
    with torch.no_grad():
        a = y * 2
    with torch.no_grad():
        b = a.float() * 3
        b.mul_(2)
    return y * a + b * y


def gradients_enabled_inside(layer, x):
    with torch.no_grad():
        a = layer(x)
        with torch.enable_grad():
            b = layer(x * a)
        c = b * 2
    return b * c


def a_value_written_through_a_detached_name(layer, x):
    y = layer(x)
    z = y * 2
    z.detach().clamp_(min=0.1)
    return z.sin() * y


FUNCTIONS = [
    a_value_written_through_a_detached_name,
    a_norm_of_the_weight, a_value_cast_to_the_dtype_that_it_has, a_dropout_that_drops_nothing,
    a_layer_first_without_and_then_with_gradient, a_value_read_in_two_blocks, gradients_enabled_inside,
]  # fmt: skip


def compare(model, x, autocast, tolerance):
    wrapped = ORTModule(copy.deepcopy(model))
    with torch.autocast("cpu", enabled=autocast):
        ours, theirs = wrapped(x), model(x)
    ours.backward()
    theirs.backward()
    for (name, p), q in zip(wrapped.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(
            p.grad,
            q.grad,
            rtol=0,
            atol=tolerance * float(q.grad.abs().max()),
            msg=lambda text, at=name: f"{at}: {text}",
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_gradients_stop_where_eagers_do(function, autocast):
    compare(Net(function), torch.randn(3, 4), autocast, 2e-2 if autocast else 1e-5)


def test_a_block_within_an_autocast_of_forward_lets_no_gradient_through():
    def function(layer, x):
        with torch.autocast("cpu"):
            return a_norm_of_the_weight(layer, x)

    compare(Net(function), torch.randn(3, 4), False, 2e-2)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("norm", [spectral_norm, parametrizations.spectral_norm])
@pytest.mark.parametrize("first", ["with", "without"])
def test_a_spectral_norm_that_is_used_twice(norm, autocast, first):
    def function(layer, x):
        with torch.set_grad_enabled(first == "with"):
            y = layer(x)
        return layer(y + x)

    torch.manual_seed(0)
    model = Net(function, nn.Linear(4, 4))
    twin = copy.deepcopy(model)
    for net in (model, twin):
        torch.manual_seed(1)
        norm(net.layer)
    x = torch.randn(3, 4)
    wrapped = ORTModule(model)
    with torch.autocast("cpu", enabled=autocast):
        wrapped(x).backward()
        twin(x).backward()
    for p, q in zip(wrapped.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(
            p.grad, q.grad, rtol=0, atol=(3e-2 if autocast else 1e-5) * float(q.grad.abs().max())
        )
    for a, b in zip(wrapped.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def a_whole_tensor(y):
    y.clamp_(-1, 1)


def a_view(y):
    y[:, 0].zero_()


def a_view_of_a_view(y):
    y.view(-1)[:3].mul_(2)


@pytest.mark.parametrize("change", [a_whole_tensor, a_view, a_view_of_a_view], ids=lambda change: change.__name__)
def test_a_gradient_passes_a_change_in_place_by(change):
    def function(layer, x):
        y = layer(x)
        with torch.no_grad():
            change(y)
        return y.sin() * x

    compare(Net(function), torch.randn(3, 4), False, 1e-5)


def test_several_tensors_written_at_once_are_refused_by_line():
    def function(layer, x):
        y = layer(x)
        with torch.no_grad():
            torch.sort(x, out=(y, torch.empty(3, 4, dtype=torch.int64)))
            torch._foreach_mul_([y, y], 2.0)
        return y * x

    with pytest.raises(CaptureError, match=r"test_no_grad.py"):
        ORTModule(Net(function))(torch.randn(3, 4))


def test_a_change_in_place_of_what_has_no_gradient_is_eagers():
    def function(layer, x):
        mask = torch.zeros(3, 4)
        with torch.no_grad():
            mask[0] = 1
            mask[:, 1].add_(x[:, 0])
        return layer(x) * mask

    compare(Net(function), torch.randn(3, 4), False, 1e-5)
