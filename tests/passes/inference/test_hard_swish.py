"""HardSwish and HardSigmoid out of formulas, and what looks like them and is not."""

from __future__ import annotations

import numpy as np
import pytest

from ontrain.passes.inference import FuseHardActivations
from tests.passes.graphs import applied, graph, operators

THREE, ZERO, SIX, SIXTH = map(np.float32, (3, 0, 6, 1 / 6))


def _clip(op, x, shift=THREE, low=ZERO, high=SIX):
    return op.Clip(op.Add(x, op.const(shift)), op.const(low), op.const(high))


SWISHES = {
    "product first": lambda op, x: op.Div(op.Mul(x, _clip(op, x)), op.const(SIX)),
    "product first, turned": lambda op, x: op.Div(op.Mul(_clip(op, x), x), op.const(SIX)),
    "division first": lambda op, x: op.Mul(x, op.Div(_clip(op, x), op.const(SIX))),
    "a sixth": lambda op, x: op.Mul(op.Mul(x, _clip(op, x)), op.const(SIXTH)),
    "a sixth first": lambda op, x: op.Mul(op.Mul(op.const(SIXTH), _clip(op, x)), x),
    "numbers of one axis": lambda op, x: op.Div(
        op.Mul(x, _clip(op, x, shift=np.full(1, 3, "f"))), op.const(np.full(1, 6, "f"))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SWISHES)
def test_a_swish_is_one_operator(name):
    model = graph(SWISHES[name], x=[5, 7])
    assert operators(applied(FuseHardActivations(), model, count=1, bitwise=False)) == ["HardSwish"]


@pytest.mark.parametrize("factor", [True, False])
def test_a_sigmoid_is_one_operator(factor):
    def make(op, x):
        return op.Mul(_clip(op, x), op.const(SIXTH)) if factor else op.Div(_clip(op, x), op.const(SIX))

    rewritten = applied(FuseHardActivations(), graph(make, x=[5, 7]), count=1, bitwise=False)
    assert operators(rewritten) == ["HardSigmoid"]


OTHERS = {
    "another shift": lambda op, x, z: op.Div(op.Mul(x, _clip(op, x, shift=np.float32(2))), op.const(SIX)),
    "another bound": lambda op, x, z: op.Div(op.Mul(x, _clip(op, x, high=np.float32(5))), op.const(SIX)),
    "another divisor": lambda op, x, z: op.Div(op.Mul(x, _clip(op, x)), op.const(np.float32(5))),
    "no lower bound": lambda op, x, z: op.Div(op.Clip(op.Add(x, op.const(THREE)), None, op.const(SIX)), op.const(SIX)),
    "a computed shift": lambda op, x, z: op.Div(_clip(op, x, shift=THREE) + op.ReduceMax(z), op.const(np.float32(7))),
    "divided into": lambda op, x, z: op.Div(op.const(SIX), _clip(op, x)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_formulas_are_left_alone(name):
    rewritten = applied(FuseHardActivations(), graph(OTHERS[name], x=[5, 7], z=[3]), count=0)
    assert "Clip" in operators(rewritten)


def test_a_product_with_another_value_keeps_the_product():
    model = graph(lambda op, x, z: op.Div(op.Mul(z, _clip(op, x)), op.const(SIX)), x=[5, 7], z=[5, 7])
    assert operators(applied(FuseHardActivations(), model, count=0)) == ["Add", "Clip", "Mul", "Div"]


def test_a_part_that_others_read_is_left_alone():
    def make(op, x):
        clipped = _clip(op, x)
        return op.Div(op.Mul(x, clipped), op.const(SIX)), clipped

    assert operators(applied(FuseHardActivations(), graph(make, x=[5, 7]), count=0)) == ["Add", "Clip", "Mul", "Div"]
