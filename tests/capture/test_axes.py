"""Operators that move, split and repeat axes, at every rank that they take: results and gradients in float64."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing._internal.opinfo.core import SampleInput

from ontrain.capture import capture
from tests.capture import op_db
from tests.capture.harness import run_captured

pytestmark = pytest.mark.sampled(4)

# Sizes that differ, and square ones, where a wrong order has the right shape.
SHAPES = [(), (3,), (3, 3), (2, 3, 4), (3, 3, 3), (2, 3, 1, 4), (2, 2, 2, 2, 2)]


def differences(function, *tensors):
    """What a function of tensors has otherwise when captured; each result is a tuple of tensors."""
    info = SimpleNamespace(op=function, name="function", dtypes=(torch.float64,), supports_autograd=True)
    first, *rest = (tensor.requires_grad_() for tensor in tensors)
    return op_db.differences(info, SampleInput(first, args=tuple(rest)))


def taken(functions, *tensors):
    """The results of those functions that eager PyTorch takes for these tensors."""
    results = []
    for function in functions:
        try:
            results.append(function(*tensors) * 1)
        except (RuntimeError, IndexError):
            continue
    return results


def pairs(rank):
    return [(a, b) for a in range(-rank, rank) for b in range(-rank, rank) if (a + 2 * b) % 4 == 0]


def reversals(x):
    # Apart from conjugates, which torch decomposes, and these with them.
    return [
        lambda x: x.T,
        lambda x: x.T.reshape(-1) * torch.arange(x.numel()),
        lambda x: x.mT,
        torch.t,
        lambda x: x.permute(list(range(-1, -x.ndim - 1, -1))),
        lambda x: torch.transpose(x, 0, -1).T,
    ]


def conjugates(x):
    return [lambda x: x.H, lambda x: x.mH, torch.adjoint]


def exchanges(x):
    return [
        function
        for a, b in pairs(x.ndim)
        for function in (
            lambda x, a=a, b=b: x.transpose(a, b),
            lambda x, a=a, b=b: x.swapaxes(a, b),
            lambda x, a=a, b=b: x.movedim(a, b),
            lambda x, a=a, b=b: x.movedim((a, b), (b, a)),
            lambda x, a=a, b=b: x.rot90(3, (a, b)),
            lambda x, a=a, b=b: x.flip(a, b),
            lambda x, a=a, b=b: x.roll((2, -1), (a, b)),
        )
    ]


def diagonals(x):
    return [
        lambda x, a=a, b=b, k=k: x.diagonal(k, a, b) for a, b in pairs(x.ndim) for k in (-1, 0, 1, 9) if a % 2 == b % 2
    ]


def foldings(x):
    along = [
        function
        for a in range(-x.ndim, x.ndim)
        for function in (
            lambda x, a=a: x.unflatten(a, (1, -1)),
            lambda x, a=a: x.repeat_interleave(3, a),
            lambda x, a=a: x.roll(7, a),
            lambda x, a=a: x.cumsum(a),
            lambda x, a=a: x.unsqueeze(a),
            lambda x, a=a: x.flatten(a),
        )
    ]
    whole = [lambda x, n=n: x.roll(n) for n in (0, 1, -1, 7)] + [lambda x: x.repeat_interleave(2), torch.atleast_3d]
    return along + whole


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:.*0-D tensors", "ignore:The use of `x.T`")
@pytest.mark.parametrize("family", [reversals, conjugates, exchanges, diagonals, foldings])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_axes_are_those_of_torch_at_every_rank(shape, family):
    x = torch.randn(shape, dtype=torch.float64)
    functions = [function for function in family(x) if taken([function], x)]
    if not functions:
        pytest.skip("torch has none of them at this rank")
    assert not differences(lambda x: tuple(function(x) * 1 for function in functions), x)


INNER = [((3, 3), (3, 3)), ((2, 3, 3), (4, 3)), ((2, 3), (4, 5, 3)), ((), (2, 3)), ((2, 3), ()), ((2, 3, 4), (4,))]


@pytest.mark.parametrize("shapes", INNER, ids=str)
def test_an_inner_product_is_along_the_last_axis_of_both(shapes):
    a, b = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    assert not differences(lambda a, b: (torch.inner(a, b),), a, b)


@pytest.mark.parametrize("dims", [(), (0,), (0, 1)], ids=str)
def test_a_roll_goes_round_more_than_once_whatever_the_size(dims):
    class Rolled(nn.Module):
        def forward(self, x):
            return x.roll((7, -9)[: max(len(dims), 1)], dims)

    captured = capture(Rolled(), (torch.randn(9, 4),), dynamic=[{0: "n"}])
    for n in (2, 3, 7, 11):
        x = torch.randn(n, 4)
        torch.testing.assert_close(run_captured(captured, (x,))[0], Rolled()(x), rtol=0, atol=0)


def test_an_outer_product_has_the_dtype_that_both_promote_to():
    a, b = torch.randn(3), torch.randn(4, dtype=torch.float64)
    count, flags = torch.arange(4), torch.tensor([True, False, True])
    assert not differences(lambda a, b: (torch.outer(a, b), torch.outer(b, a)), a, b)
    assert not differences(lambda a: (torch.outer(a, count), torch.outer(flags, a), torch.ger(flags, flags)), a)
    assert not differences(lambda a: (torch.einsum("i,j->ij", a, count),), a)
    assert not differences(lambda a: (a, torch.fmax(flags, ~flags), torch.minimum(flags, ~flags)), a)
