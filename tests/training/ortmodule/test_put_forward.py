"""A method in the place of an ORTModule's forward, as TRL's trainers put one there."""

import functools
import types
import warnings

import pytest
import torch

from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import Perceptron, assert_same_gradients, pair


def patch(model):
    """Give a model another forward, which calls the former one, or layers."""
    former = model.forward

    @functools.wraps(former)
    def other(self, x, *, layers=False):
        return self.second(self.first(x)) if layers else former(x) * 3

    model.forward = types.MethodType(other, model)


def test_a_method_that_calls_layers_in_the_place_of_forward_is_told_of_once():
    ours, eager = pair(Perceptron().double())
    x = torch.randn(5, 6, dtype=torch.float64)
    for module in (ours, eager):
        patch(module)
    told = r"other \(.*test_put_forward.py:\d+\) is in the place of this ORTModule's forward and has not called it"
    with pytest.warns(UserWarning, match=told):
        y = ours(x, layers=True)
    y.sum().backward()
    eager(x, layers=True).sum().backward()
    assert_same_gradients(ours, eager, rtol=1e-9, atol=1e-11)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(x, layers=True)


def test_a_method_around_forward_runs_around_the_graph():
    ours, eager = pair(Perceptron().double())
    x = torch.randn(5, 6, dtype=torch.float64)
    for module in (ours, eager):
        patch(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = ours(x)
    torch.testing.assert_close(y, eager(x))
    assert isinstance(ours, ORTModule)
