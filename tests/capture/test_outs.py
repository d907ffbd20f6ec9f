"""Operators that write to a tensor they are handed by `out=`, or to a part of it: what is read later is eager's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.capture.aliases import Aliases
from ontrain.capture.program import flat_graph
from ontrain.training.ortmodule import ORTModule


def whole(h):
    y = torch.empty_like(h)
    torch.cumsum(h.detach(), 0, out=y)
    return y * h


def a_part(h):
    y = torch.zeros(h.shape[0] + 1, h.shape[1], dtype=h.dtype)
    result = torch.cumsum(h.detach(), 0, out=y[1:])
    return y[:-1] * h + result


def two_results(h):
    values, places = torch.empty(h.shape[0], dtype=h.dtype), torch.empty(h.shape[0], dtype=torch.int64)
    result = torch.max(h.detach(), 1, out=(values, places))
    return h * values[:, None] + places[:, None] + result.indices[:, None]


def two_dtypes(h):
    y = torch.empty(h.shape, dtype=torch.float32)
    torch.mul(h.detach(), 2, out=y)
    return h * y


def another_shape(h):
    y = torch.empty(0, dtype=h.dtype)
    torch.cumsum(h.detach(), 0, out=y)
    return y * h


def under_no_grad(h):
    y = torch.ones_like(h)
    with torch.no_grad():
        torch.mul(h, y, out=y)
    return y * h


class Layer(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear, self._function = nn.Linear(4, 3).double(), function

    def forward(self, x):
        return self._function(self.linear(x))


@pytest.mark.parametrize(
    "function",
    [whole, a_part, two_results, two_dtypes, another_shape, under_no_grad],
    ids=lambda function: function.__name__,
)
def test_what_is_read_behind_a_write_to_out(function):
    eager = Layer(function)
    ours = ORTModule(copy.deepcopy(eager))
    for rows in (3, 5):
        x = torch.randn(rows, 4, dtype=torch.float64)
        weight = torch.randn(rows, 3, dtype=torch.float64)
        results = [module(x) for module in (ours, eager)]
        torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)
        for module, y in zip((ours, eager), results, strict=True):
            module.zero_grad()
            (y * weight).sum().backward()
        torch.testing.assert_close(ours.linear.weight.grad, eager.linear.weight.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("function", [whole, a_part, two_results])
def test_a_flat_graph_copies_results_to_where_they_are_wanted(function):
    """torch would write the program anew otherwise, and ask again what the values of a batch have answered."""

    def narrowed(h):
        y = torch.empty(4, 3, dtype=h.dtype)
        y.narrow(0, 0, 1).zero_()
        return function(h) + torch.cumsum(h.detach(), 0, out=y.narrow(0, 1, 3))

    program = torch.export.export(Layer(narrowed), (torch.randn(3, 4, dtype=torch.float64),))
    graph = flat_graph(program.graph_module)
    targets = [node.target for node in graph.nodes if node.op == "call_function"]
    assert torch.ops.aten.copy_.default in targets and torch.ops.aten.narrow.default in targets
    assert not [target for target in targets if str(target).endswith("out")]
    assert Aliases(graph).followed
