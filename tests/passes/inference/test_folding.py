"""What depends on weights alone is a weight; what depends on a feed, or grows too much, stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ontrain.passes.inference import FoldWeights
from tests.passes.inference.weighted import applied, operators, random, weighted

X = {"x": ["batch", 4]}


def test_quantised_weights_become_numbers_once():
    weights = {"w": np.arange(-10, 10, dtype=np.int8).reshape(4, 5), "scale": random(5)}

    def make(op, x, w, scale):
        return op.MatMul(x, op.Cast(w, to=ir.DataType.FLOAT) * scale)

    model = applied(FoldWeights(), weighted(make, X, weights), count=2)
    assert operators(model) == ["MatMul"] and len(model.graph.inputs) == 2


def test_so_do_tables_that_are_constants_of_the_graph():
    table = np.random.default_rng(0).integers(-128, 128, (4, 2_000_000)).astype(np.int8)

    def make(op, x, scale):
        return op.MatMul(x, op.Cast(op.const(table), to=ir.DataType.FLOAT) * scale)

    model = applied(FoldWeights(), weighted(make, X, {"scale": random(1)}), count=2)
    assert operators(model) == ["MatMul"] and len(model.graph.inputs) == 2


def test_what_meets_a_feed_stays():
    model = applied(FoldWeights(), weighted(lambda op, x, w: op.Exp(x * w), X, {"w": random(4)}), count=0)
    assert operators(model) == ["Mul", "Exp"]


def test_a_value_much_larger_than_what_it_is_made_of_stays():
    def make(op, x, w):
        return op.MatMul(x, op.Expand(w, np.array([4, 40000])))

    model = applied(FoldWeights(), weighted(make, X, {"w": random(4, 1)}), count=0)
    assert operators(model) == ["Expand", "MatMul"]


def test_a_weight_that_is_handed_out_keeps_its_node():
    model = applied(FoldWeights(), weighted(lambda op, x, w: (op.Neg(w), x * w), X, {"w": random(4)}), count=0)
    assert sorted(operators(model)) == ["Mul", "Neg"]
