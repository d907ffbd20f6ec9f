"""What makes a value, and the numbers among a node's operands."""

from __future__ import annotations

import numpy as np

from ontrain.passes.inference import weights_of
from ontrain.passes.inference.makers import axes_of, maker_of, number_of, permutation_of
from tests.passes.inference.weighted import random, weighted


def test_a_node_is_found_by_what_it_makes_and_its_operands_are_read():
    def make(op, x, w):
        turned = op.Transpose(op.ReduceSum(x, np.array([-1]), keepdims=1))
        return op.Transpose(turned, perm=[1, 0, 2]) * w

    model = weighted(make, {"x": ["batch", "length", 4]}, {"w": random(1)})
    total, reverse, turn, product = model.graph
    assert maker_of(product.inputs[0], "Transpose") is turn and maker_of(product.inputs[0], "Mul") is None
    assert maker_of(None, "Mul") is None and maker_of(model.graph.inputs[0], "Mul") is None
    assert axes_of(total) == [-1] and axes_of(reverse) is None
    assert permutation_of(reverse) == [2, 1, 0] and permutation_of(turn) == [1, 0, 2]


def test_a_number_is_one_of_a_constant_or_a_weight():
    def make(op, x, scale, matrix):
        return x * scale + matrix + op.const(np.float32(3))

    model = weighted(make, {"x": [2]}, {"scale": np.array([[5.0]], np.float32), "matrix": random(2)})
    weights, inputs = weights_of(model.graph), model.graph.inputs
    assert number_of(inputs[1], weights) == 5 and number_of(inputs[2], weights) is None
    assert number_of(model.graph[-1].inputs[1], weights) == 3 and number_of(inputs[0], weights) is None
