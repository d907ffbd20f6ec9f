"""Root-mean-square normalisation out of formulas, and what looks like it and is not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ontrain.passes.inference import FuseRMSNormalization
from tests.passes.graphs import applied, graph, operators

HALF, FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT
SCALE = np.linspace(-1, 1, 8, dtype=np.float32)


def number(op, value):
    return op.const(np.float32(value))


def mean_square(op, x, axis=-1, square="Pow", epsilon=1e-5, exponent=2, **more):
    squared = op.Pow(x, number(op, exponent)) if square == "Pow" else op.Mul(x, x)
    return op.Add(op.ReduceMean(squared, np.array([axis]), **more), number(op, epsilon))


NORMALS = {
    "Reciprocal": lambda op, x, moment: op.Mul(x, op.Reciprocal(op.Sqrt(moment))),
    "Reciprocal, turned": lambda op, x, moment: op.Mul(op.Reciprocal(op.Sqrt(moment)), x),
    "one divided by the root": lambda op, x, moment: op.Mul(x, op.Div(number(op, 1), op.Sqrt(moment))),
    "a power": lambda op, x, moment: op.Mul(x, op.Pow(moment, number(op, -0.5))),
    "division": lambda op, x, moment: op.Div(x, op.Sqrt(moment)),
}


def norm(op, x, normal="Reciprocal", scale=SCALE, turned=False, **more):
    result = NORMALS[normal](op, x, mean_square(op, x, **more))
    return op.Mul(op.const(scale), result) if turned else op.Mul(result, op.const(scale))


@pytest.mark.parametrize("normal", NORMALS)
@pytest.mark.parametrize("square", ["Pow", "Mul"])
@pytest.mark.parametrize("turned", [False, True])
def test_the_formula_becomes_the_operator(normal, square, turned):
    model = graph(lambda op, x: norm(op, x, normal, turned=turned, square=square), x=[3, 5, 8])
    model = applied(FuseRMSNormalization(), model, count=1, bitwise=False)
    assert operators(model) == ["RMSNormalization"]
    assert abs(model.graph[0].attributes["epsilon"].as_float() - 1e-5) < 1e-12


@pytest.mark.parametrize("scale", [SCALE, SCALE[None, None]], ids=["a vector", "axes of one place before"])
def test_the_last_axis_may_be_counted_from_the_front(scale):
    model = graph(lambda op, x: norm(op, x, scale=scale, axis=2), x=[3, 5, 8])
    assert operators(applied(FuseRMSNormalization(), model, count=1, bitwise=False)) == ["RMSNormalization"]


def test_a_scale_that_is_computed_is_taken():
    def make(op, x, w):
        return op.Mul(NORMALS["Reciprocal"](op, x, mean_square(op, x)), op.Add(w, number(op, 1)))

    model = applied(FuseRMSNormalization(), graph(make, x=[5, 8], w=[8]), count=1, bitwise=False)
    assert operators(model) == ["Add", "RMSNormalization"]


def halves(op, x, *, before=HALF, casts=(HALF,)):
    """Values of half precision whose normalisation is computed in single precision."""
    wide = op.Cast(op.Cast(x, to=before), to=FLOAT)
    normal = NORMALS["Reciprocal"](op, wide, mean_square(op, wide))
    for dtype in casts:
        normal = op.Cast(normal, to=dtype)
    return op.Cast(op.Mul(normal, op.const(SCALE.astype(normal.dtype.numpy()))), to=ir.DataType.DOUBLE)


def test_half_precision_around_the_formula_is_the_operators_own():
    """Not through its values, which the evaluator of onnx computes in half precision."""
    model, changed = FuseRMSNormalization().apply(graph(halves, x=[5, 8]))
    assert changed == 1 and operators(model) == ["Cast", "RMSNormalization", "Cast"]
    assert [value.dtype for value in model.graph[1].inputs] == [HALF, HALF]
    assert model.graph[1].attributes["stash_type"].as_int() == FLOAT


def test_a_formula_whose_result_alone_is_cast_is_the_operator_in_single_precision():
    model, changed = FuseRMSNormalization().apply(graph(lambda op, x: halves(op, x, casts=()), x=[5, 8]))
    assert changed == 1 and "RMSNormalization" in operators(model)
    assert all(node.inputs[0].dtype == FLOAT for node in model.graph if node.op_type == "RMSNormalization")


OTHERS = {
    "another axis": lambda op, x, z: norm(op, x, axis=0),
    "an axis that is dropped": lambda op, x, z: norm(op, x, keepdims=0),
    "another power": lambda op, x, z: norm(op, x, exponent=3),
    "another root": lambda op, x, z: op.Mul(
        op.Mul(x, op.Pow(mean_square(op, x), number(op, -0.25))), op.const(SCALE)
    ),
    "two divided by the root": lambda op, x, z: op.Mul(
        op.Mul(x, op.Div(number(op, 2), op.Sqrt(mean_square(op, x)))), op.const(SCALE)
    ),
    "the root of another value": lambda op, x, z: op.Mul(
        NORMALS["Reciprocal"](op, x, mean_square(op, z)), op.const(SCALE)
    ),
    "a product in the place of the square": lambda op, x, z: op.Mul(
        op.Div(x, op.Sqrt(op.Add(op.ReduceMean(op.Mul(x, z), np.array([-1])), number(op, 9)))), op.const(SCALE)
    ),
    "a computed number below the root": lambda op, x, z: op.Mul(
        op.Div(x, op.Sqrt(op.Add(op.ReduceMean(op.Mul(x, x), np.array([-1])), op.ReduceMax(z)))), op.const(SCALE)
    ),
    "a scale for each row": lambda op, x, z: norm(op, x, scale=np.ones((8, 8), np.float32)),
    "a scale that broadcasts": lambda op, x, z: norm(op, x, scale=np.ones((2, 1, 8), np.float32)),
    "one number for all": lambda op, x, z: norm(op, x, scale=np.float32(2)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_formulas_are_left_alone(name):
    model = applied(FuseRMSNormalization(), graph(OTHERS[name], x=[8, 8], z=[8, 8]), count=0)
    assert "ReduceMean" in operators(model)


def test_a_part_that_others_read_is_left_alone():
    def make(op, x):
        inverse = op.Reciprocal(op.Sqrt(mean_square(op, x)))
        return op.Mul(op.Mul(x, inverse), op.const(SCALE)), inverse

    assert "ReduceMean" in operators(applied(FuseRMSNormalization(), graph(make, x=[5, 8]), count=0))


@pytest.mark.parametrize(
    "types",
    [{"casts": (HALF, FLOAT)}, {"before": ir.DataType.BFLOAT16}],
    ids=["rounded before the scale", "of another half precision than the scale"],
)
def test_a_result_with_a_precision_of_its_own_is_left_alone(types):
    model, changed = FuseRMSNormalization().apply(graph(lambda op, x: halves(op, x, **types), x=[5, 8]))
    assert changed == 0 and "ReduceMean" in operators(model)
