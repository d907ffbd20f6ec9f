"""Equal nodes become one; what draws numbers, or is told apart by others, does not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ontrain.graph import Builder, new_model, rebuild
from ontrain.passes import ShareCommonSubexpressions
from tests.passes.graphs import applied, graph, operators


def test_equal_nodes_become_one():
    def make(op, x, y):
        return op.Exp(x + y) * op.Tanh(x + y), op.Exp(x + y)

    rewritten = applied(ShareCommonSubexpressions(), graph(make, x=[3], y=[3]), count=3)
    assert sorted(operators(rewritten)) == ["Add", "Exp", "Mul", "Tanh"]


def test_other_attributes_make_other_nodes():
    model = graph(lambda op, x: op.Softmax(x, axis=0) + op.Softmax(x, axis=1), x=[3, 4])
    assert len(operators(applied(ShareCommonSubexpressions(), model, count=0))) == 3


def test_two_dropouts_stay_two():
    model = graph(lambda op, x: op.Dropout(x, 0.5, True) + op.Dropout(x, 0.5, True), x=[8])
    rewritten, changed = ShareCommonSubexpressions().apply(model)
    assert changed == 0 and operators(rewritten).count("Dropout") == 2


def test_outputs_that_turn_out_equal_keep_their_own_names():
    model = graph(lambda op, x: (op.Tanh(x), op.Exp(x), op.Tanh(x)), x=[2, 3])
    # The later output is computed first, so the shared value comes with the name that belongs to the other.
    first, middle, last = model.graph.outputs
    model.graph.outputs[0], model.graph.outputs[2] = last, first
    rewritten = applied(ShareCommonSubexpressions(), model, count=0)
    assert sorted(operators(rewritten)) == ["Exp", "Identity", "Tanh"]
    assert [value.name for value in rewritten.graph.outputs] == ["y2", "y1", "y0"]


def test_what_is_equal_behind_equal_nodes_is_one_too():
    def make(op, x):
        return op.Exp(op.Tanh(x)) * op.Exp(op.Tanh(x))

    rewritten = applied(ShareCommonSubexpressions(), graph(make, x=[3]), count=2)
    assert operators(rewritten).count("Exp") == operators(rewritten).count("Tanh") == 1


def test_the_order_of_operands_tells_nodes_apart():
    model = graph(lambda op, x, y: (x - y) * (y - x), x=[3], y=[3])
    assert operators(applied(ShareCommonSubexpressions(), model, count=0)).count("Sub") == 2


@pytest.mark.parametrize("draw", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_what_is_drawn_twice_is_two_draws(draw):
    model = graph(lambda op, x: getattr(op, draw)(x) + getattr(op, draw)(x), x=[8])
    rewritten, changed = ShareCommonSubexpressions().apply(model)
    assert changed == 0 and operators(rewritten).count(draw) == 2


def test_each_place_of_an_adjoint_stays_its_own():
    model = graph(lambda op, x: op.composite("Adjoint", x) * op.composite("Adjoint", x), x=[3])
    rewritten, changed = ShareCommonSubexpressions().apply(model)
    assert changed == 0 and operators(rewritten).count("Adjoint") == 2


def test_constants_of_other_contents_make_other_nodes():
    def make(op, x):
        filled = [op.ConstantOfShape(x, value=ir.tensor(np.array([v], np.float32))) for v in (1.0, 2.0, 1.0)]
        return op.ReduceSum(filled[0]), op.ReduceSum(filled[1]), op.ReduceSum(filled[2])

    shape = ir.Value(name="shape", shape=ir.Shape([2]), type=ir.TensorType(ir.DataType.INT64))
    model = new_model([shape], "filled")
    model.graph.outputs.extend(make(Builder(model.graph), shape))
    rewritten, _ = ShareCommonSubexpressions().apply(model)
    assert operators(rebuild(rewritten)).count("ConstantOfShape") == 2
