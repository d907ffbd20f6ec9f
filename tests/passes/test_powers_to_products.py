"""Squares and reciprocals are computed as such; every other power stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ontrain.passes import PowersToProducts, run_passes
from tests.passes.graphs import applied, graph, operators


@pytest.mark.parametrize(("exponent", "operator"), [(2.0, "Mul"), (-1.0, "Reciprocal"), ([2.0, 2.0, 2.0], "Mul")])
def test_a_square_is_a_product_and_a_reciprocal_a_quotient(exponent, operator):
    model = graph(lambda op, x: op.Pow(x, np.array(exponent, np.float32)), x=[4, 3])
    assert operators(applied(PowersToProducts(), model, count=1, bitwise=False)) == [operator]


@pytest.mark.parametrize("exponent", [3.0, 0.5, 1.0, -2.0, [2.0, -1.0, 2.0]])
def test_other_powers_stay(exponent):
    model = graph(lambda op, x: op.Pow(op.Abs(x), np.array(exponent, np.float32)), x=[4, 3])
    assert "Pow" in operators(applied(PowersToProducts(), model, count=0))


def test_an_exponent_that_is_not_known_stays():
    model = graph(lambda op, x, b: op.Pow(op.Abs(x), b), x=[4, 3], b=[3])
    assert "Pow" in operators(applied(PowersToProducts(), model, count=0))


def test_a_result_of_another_shape_stays_and_the_report_says_why():
    model = graph(lambda op, x: op.Pow(x, np.full((2, 4, 3), 2, np.float32)), x=[4, 3])
    rewritten, reports = run_passes(model, (PowersToProducts(),))
    assert operators(rewritten) == ["Pow"]
    assert reports[0].refusals == {"the exponent gives the result its shape": 1}


def test_whole_numbers_are_multiplied_and_never_divided():
    def make(op, x):
        whole = op.Cast(x, to=ir.DataType.INT64)
        return op.Pow(whole, np.array(2, np.int64)), op.Pow(whole, np.array(-1, np.int64))

    rewritten, changed = PowersToProducts().apply(graph(make, x=[5]))
    assert changed == 1 and sorted(operators(rewritten)) == ["Cast", "Mul", "Pow"]
