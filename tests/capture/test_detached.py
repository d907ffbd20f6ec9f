"""Names that share memory and have gradients of their own: what is written through one is read under all of them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule

pytestmark = pytest.mark.sampled(4)


class Net(nn.Module):
    """A linear layer, a weight, a buffer, and a function of the module, the layer's result and the input."""

    def __init__(self, function):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.w = nn.Parameter(torch.randn(4))
        self.register_buffer("b", torch.randn(4))
        self.function = function

    def forward(self, x):
        return self.function(self, self.layer(x), x)


WRITES = []
"""Functions of a module, a value y that has a gradient, and an input."""


def write(function):
    WRITES.append(function)
    return function


@write
def through_the_detached_name(m, y, x):
    z = y * 2
    d = z.detach()
    d.mul_(m.w)
    return z * m.w + d


@write
def through_the_tensor_and_the_detached_name_is_read(m, y, x):
    z = y * 2
    d = z.detach()
    z.mul_(m.w)
    return z, d * m.w


@write
def behind_a_mask(m, y, x):
    z = y * 2
    d = z.detach()
    d[x > 0] = m.w.sum()
    return z * m.w + d


@write
def through_a_row_of_the_detached_name(m, y, x):
    z = y * 2
    d = z.detach()
    d[0].mul_(m.w)
    return z * m.w + d


@write
def through_a_diagonal_of_the_detached_name(m, y, x):
    z = y * 2
    d = z.detach()
    d[:2, :2].diagonal().mul_(m.w.sum())
    return z * m.w + d


@write
def through_a_detached_column(m, y, x):
    z = y * 2
    d = z.T[1].detach()
    d.mul_(m.w[0])
    return z * m.w, d


@write
def through_the_tensor_of_a_detached_column(m, y, x):
    z = y * 2
    d = z.T[1].detach()
    z.mul_(m.w)
    return z * m.w, d * m.w[0]


@write
def through_a_copy_of_a_detached_column_that_no_other_name_sees(m, y, x):
    z = y * 2
    d = z[:, :2].detach()
    r = d.reshape(-1)
    d.mul_(m.w[0])
    r.add_(m.w[1])
    return z, d, r


@write
def through_data(m, y, x):
    z = y * 2
    z.data[x > 0] = 0.3
    return z * m.w


@write
def through_the_last_of_three_names(m, y, x):
    z = y * 2
    d = z.detach()
    e = d.detach()
    e.mul_(m.w)
    return z * m.w, d * m.w, e


@write
def through_each_of_three_names(m, y, x):
    z = y * 2
    d, e = z.detach(), z.detach()
    d.mul_(m.w)
    e.add_(m.w**2)
    z.mul_(m.w.sin())
    return z, d, e


@write
def through_pieces_of_the_detached_name(m, y, x):
    z = y * 2
    d = z.detach()
    a, b = d.split(2, 1)
    a.mul_(2)
    b.add_(1)
    return z * m.w, d


@write
def through_columns_in_blocks_without_gradient(m, y, x):
    z = y * 2
    for column in z.detach().unbind(1)[:2]:
        with torch.no_grad():
            column.mul_(2)
    return z * m.w


@write
def in_a_loop(m, y, x):
    z = y * 2
    for i in range(3):
        z.detach()[:, i].mul_(2)
        z[:, i] *= m.w[i]
    return z


@write
def through_the_values_of_a_sort(m, y, x):
    z = y * 2
    values, _ = z.sort(1)
    values.detach().mul_(2)
    return values * m.w, z


@write
def through_the_real_part(m, y, x):
    z = torch.complex(y, y * 2)
    z.detach().real.mul_(m.w)
    return torch.view_as_real(z)


@write
def through_pairs_as_complex_numbers(m, y, x):
    z = y * 2
    torch.view_as_complex(z.view(-1, 2, 2)).detach().mul_(2j)
    return z * m.w


@write
def under_autocast(m, y, x):
    z = y * 2
    d = z.detach()
    with torch.autocast("cpu"):
        d.mul_(m.w)
    return z * m.w, d


@write
def without_gradient_under_autocast(m, y, x):
    z = y * 2
    with torch.autocast("cpu"), torch.no_grad():
        z.add_(m.w)
    return z.sin()


@write
def without_gradient_to_what_follows_from_the_input(m, y, x):
    z = x * 2
    with torch.no_grad():
        z.mul_(3)
    return z.sin() * y


@write
def without_gradient_of_a_value_that_has_one(m, y, x):
    a = torch.zeros(4, dtype=x.dtype)
    with torch.no_grad():
        a[0] = m.w.sum()
        a[1:].add_(y.sum())
    return a * y


@write
def without_gradient_to_a_buffer(m, y, x):
    before = y - m.b
    with torch.no_grad():
        m.b[:2] = y.mean(0)[:2]
        m.b[2:] += 1
    return before * m.b


@write
def without_gradient_by_out(m, y, x):
    z = y * 2
    with torch.no_grad():
        torch.add(z, 1, out=z)
    return z * m.w


@write
def without_gradient_by_a_function_that_returns_its_argument(m, y, x):
    @torch.no_grad()
    def bounded(t):
        return t.clamp_(-1, 1)

    return bounded(y * 2) * m.w


@write
def without_gradient_and_then_with(m, y, x):
    with torch.no_grad():
        a = y * 2
    a.mul_(m.w)
    with torch.no_grad():
        a[0].add_(y[0])
    return a * y


@write
def to_what_a_dropout_returned_that_drops_nothing(m, y, x):
    z = y * 2
    functional.dropout(z, 0.0, training=True).mul_(m.w)
    functional.dropout1d(z, 0.5, training=False).add_(m.w)
    return z


@write
def to_columns_of_what_has_no_gradient(m, y, x):
    h = x.detach() * 2
    h.unbind(1)[0].mul_(2)
    h.unfold(1, 2, 2).add_(1)
    return h * y


def leaves(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


def loss(result):
    return sum((t.sin() * torch.arange(1.0, 1 + t.numel(), dtype=t.dtype).view(t.shape)).sum() for t in leaves(result))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", WRITES, ids=lambda function: function.__name__)
def test_values_and_gradients_behind_a_write(function):
    model = Net(function).double()
    wrapped = ORTModule(copy.deepcopy(model))
    for rows in (3, 5):
        x = torch.randn(rows, 4, dtype=torch.float64)
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        for net in (wrapped, model):
            net.zero_grad()
        ours, theirs = wrapped(inputs[0]), model(inputs[1])
        for result in (ours, theirs):
            loss(result).backward()
        torch.testing.assert_close(leaves(ours), leaves(theirs))
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
        torch.testing.assert_close(dict(wrapped.named_buffers()), dict(model.named_buffers()))
        for p, q in zip(wrapped.parameters(), model.parameters(), strict=True):
            ours, theirs = (torch.zeros_like(p) if grad is None else grad for grad in (p.grad, q.grad))
            torch.testing.assert_close(ours, theirs)


def as_strided_of_a_detached_tensor(m, y, x):
    z = y * 2
    z.detach().as_strided((2,), (1,)).mul_(3)
    return z


def rows_of_a_detached_expanded_tensor(m, y, x):
    z = m.w * 2
    z.expand(3, 4).detach()[0].mul_(2)
    return z


def a_view_by_einsum(m, y, x):
    z = y * 2
    torch.einsum("ij->ji", z)[0].mul_(3)
    return z


def other_memory(m, y, x):
    z = y * 2
    z.data = z.round()
    return z


@pytest.mark.parametrize(
    "function",
    [as_strided_of_a_detached_tensor, rows_of_a_detached_expanded_tensor, a_view_by_einsum, other_memory],
    ids=lambda function: function.__name__,
)
def test_a_write_that_memory_alone_explains_is_refused_by_line(function):
    with pytest.raises(CaptureError, match=r"writes to|other memory") as error:
        ORTModule(Net(function))(torch.randn(3, 4))
    assert "test_detached.py" in str(error.value)
