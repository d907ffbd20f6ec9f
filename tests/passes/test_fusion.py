"""A fusion says why a place that looks right stays as it is, and a node belongs to one match at most."""

from __future__ import annotations

import numpy as np
import pytest

from ontrain.passes import FuseActivations, FuseHead, LinearToGemm, run_passes
from ontrain.passes.fusion import Fusion, Pattern, fail
from tests.passes.graphs import applied, graph, operators


def refusals(fusion, model):
    """What the report of a pass says that it left alone, and why."""
    return run_passes(model, [fusion])[1][0].refusals


def read_twice(op, x, w, b):
    y = op.MatMul(x, w)
    return y + b, op.Tanh(y)


def rows(op, h, w, **attributes):
    return op.SoftmaxCrossEntropyLoss(op.Gemm(h, w, transB=1), np.array([1, 0, 3]), **attributes)


def half_read(op, x):
    gate = op.Sigmoid(x)
    return x * gate, gate


@pytest.mark.parametrize(
    ("fusion", "make", "shapes", "reasons"),
    [
        (LinearToGemm(), read_twice, {"x": [6, 4], "w": [4, 5], "b": [5]}, {"others read the result of MatMul": 1}),
        (
            LinearToGemm(),
            lambda op, x, w, b: op.MatMul(x, w) + b,
            {"x": [6, 4], "w": [4, 5], "b": [6, 5]},
            {"what is added to the product is not one number a column": 1},
        ),
        (
            LinearToGemm(),
            lambda op, x, y: op.MatMul(x, y),
            {"x": [2, 3, 4], "y": [2, 4, 5]},
            {"it is a product of batches, or of vectors": 1},
        ),
        (FuseHead(), rows, {"h": [3, 4], "w": [5, 4]}, {"the scores are small": 1}),
        (
            FuseHead(),
            lambda op, h, w: rows(op, h, w, reduction="none"),
            {"h": [3, 4], "w": [5, 4]},
            {"each row has a loss of its own": 1},
        ),
        (FuseActivations(), half_read, {"x": [3]}, {"a part of the formula is read elsewhere": 1}),
        (FuseActivations(), lambda op, x: x * op.Sigmoid(x), {"x": [3]}, {}),
    ],
)
def test_the_report_says_why_a_pattern_was_left_alone(fusion, make, shapes, reasons):
    assert refusals(fusion, graph(make, **shapes)) == reasons


class Squares(Fusion):
    """Mul(Neg(x), Neg(x)) is Mul(x, x); a product of two others is refused."""

    patterns = (Pattern("Mul", (Pattern("Neg", ("x",), name="left"), "y"), commutes=True),)

    def check(self, match):
        maker = match["y"].producer()
        if maker is None or maker.op_type != "Neg" or maker.inputs[0] is not match["x"]:
            fail("the factors differ")

    def replace(self, op, match, operands):
        return [op.Mul(operands["x"], operands["x"])]


def test_operands_are_found_in_the_new_graph_in_either_order():
    model = graph(lambda op, x: op.Exp(op.Neg(x) * op.Neg(x)), x=[3])
    assert operators(applied(Squares(), model, count=1)) == ["Mul", "Exp"]


def test_each_order_that_looks_right_is_refused_for_itself():
    model = graph(lambda op, x, y: op.Neg(x) * op.Neg(y), x=[3], y=[3])
    assert refusals(Squares(), model) == {"the factors differ": 2}


def test_a_node_belongs_to_one_match_at_most():
    def make(op, x):
        inner = op.Neg(x) * op.Neg(x)
        return op.Neg(inner) * op.Neg(inner)

    assert operators(applied(Squares(), graph(make, x=[3]), count=2)) == ["Mul", "Mul"]
