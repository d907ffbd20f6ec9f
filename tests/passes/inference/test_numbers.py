"""Weights of one number become constants, larger ones stay."""

from __future__ import annotations

import numpy as np
import pytest

from ontrain.passes.inference import SettleNumbers
from tests.passes.inference.weighted import applied, operators, random, weighted


@pytest.mark.parametrize("shape", [(1,), (1, 1), ()], ids=str)
def test_a_weight_of_one_number_is_a_constant(shape):
    weights = {"number": np.full(shape, 2.5, np.float32), "vector": random(4)}
    model = weighted(lambda op, x, number, vector: x * number + vector, {"x": ["batch", 4]}, weights)
    model = applied(SettleNumbers(), model, count=1)
    assert [value.name for value in model.graph.inputs] == ["x", "vector"] and operators(model) == ["Mul", "Add"]
    assert float(model.graph[0].inputs[1].const_value.numpy().reshape(())) == 2.5


def test_what_is_fed_stays():
    model = weighted(lambda op, x, y: x * y, {"x": ["batch", 4], "y": [1]}, {})
    applied(SettleNumbers(), model, count=0)
