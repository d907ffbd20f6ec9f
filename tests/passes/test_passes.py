"""Each pass on the picture in its docstring: how many places change, what remains, and that no number does."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from ontrain import GraphError
from ontrain.functions import inline_all
from ontrain.graph import Builder, new_model, rebuild
from ontrain.passes import LinearToGemm, Pass, ShareCommonSubexpressions, Simplify, run_passes

FLOAT = ir.TensorType(ir.DataType.FLOAT)


def graph(make, **shapes):
    """A model whose inputs have these shapes and whose outputs are what `make(op, *inputs)` returns."""
    inputs = [ir.Value(name=name, shape=ir.Shape(shape), type=FLOAT) for name, shape in shapes.items()]
    model = new_model(inputs, "test")
    op = Builder(model.graph)
    with op.arithmetic():
        made = make(op, *inputs)
    for i, value in enumerate(made if isinstance(made, tuple) else (made,)):
        value.name = f"y{i}"
        model.graph.outputs.append(value)
    return model


def values(model, seed=0):
    rng = np.random.default_rng(seed)
    feeds = {v.name: rng.standard_normal(v.shape.numpy()).astype(np.float32) for v in model.graph.inputs}
    return ReferenceEvaluator(ir.to_proto(inline_all(rebuild(model)))).run(None, feeds)


def operators(model):
    return [node.op_type for node in model.graph]


def applied(one, model, *, count, bitwise=True):
    before = values(model)
    made, changed = one.apply(model)
    made = rebuild(made)
    assert changed == count
    for a, b in zip(before, values(made), strict=True):
        np.testing.assert_array_equal(a, b) if bitwise else np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return made


def test_a_linear_layer_becomes_one_gemm_with_its_bias():
    model = graph(lambda op, x, w, b: op.MatMul(x, op.Transpose(w, perm=[1, 0])) + b, x=[2, 3, 4], w=[5, 4], b=[5])
    made = applied(LinearToGemm(), model, count=1, bitwise=False)
    assert operators(made) == ["Reshape", "Gemm", "Reshape"]
    assert made.graph[1].attributes["transB"].as_int() == 1


def test_a_bias_on_the_left_is_taken_along_too():
    model = graph(lambda op, x, w, b: b + op.MatMul(x, w), x=[6, 4], w=[4, 5], b=[5])
    assert operators(applied(LinearToGemm(), model, count=1, bitwise=False)) == ["Gemm"]


def test_a_product_that_others_read_keeps_its_bias_apart():
    def make(op, x, w, b):
        y = op.MatMul(x, w)
        return y + b, op.Tanh(y)

    made = applied(LinearToGemm(), graph(make, x=[6, 4], w=[4, 5], b=[5]), count=1, bitwise=False)
    assert sorted(operators(made)) == ["Add", "Gemm", "Tanh"]


def test_a_sum_of_two_products_keeps_both():
    model = graph(lambda op, x, w, v: op.MatMul(x, w) + op.MatMul(x, v), x=[6, 4], w=[4, 5], v=[4, 5])
    assert sorted(operators(applied(LinearToGemm(), model, count=2, bitwise=False))) == ["Add", "Gemm", "Gemm"]


def test_a_product_of_batches_is_left_alone():
    model = graph(lambda op, x, y: op.MatMul(x, y), x=[2, 3, 4], y=[2, 4, 5])
    assert operators(applied(LinearToGemm(), model, count=0)) == ["MatMul"]


@pytest.mark.parametrize(
    ("make", "left"),
    [
        (lambda op, x: op.Exp(x) * 1.0, ["Exp"]),
        (lambda op, x: op.Exp(x) + 0.0, ["Exp"]),
        (lambda op, x: op.Exp(x) - 0.0, ["Exp"]),
        (lambda op, x: op.Exp(x) / 1.0, ["Exp"]),
        (lambda op, x: op.Identity(op.Exp(x)), ["Exp"]),
        (lambda op, x: op.Expand(op.Exp(x), [3, 4]), ["Exp"]),
        (lambda op, x: op.Reshape(op.Reshape(op.Exp(x), [12]), [4, 3]), ["Exp", "Reshape"]),
        (lambda op, x: op.Reshape(op.Reshape(op.Exp(x), [12]), [3, 4]), ["Exp"]),
        (lambda op, x: op.Transpose(op.Transpose(op.Exp(x), perm=[1, 0]), perm=[1, 0]), ["Exp"]),
        (lambda op, x: op.Where(np.ones((3, 4), bool), op.Exp(x), 0.0), ["Exp"]),
    ],
)
def test_what_does_nothing_goes(make, left):
    model = graph(make, x=[3, 4])
    made, _ = run_passes(model, [Simplify(), Simplify()])
    assert operators(rebuild(made)) == left
    for a, b in zip(values(model), values(made), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "make",
    [
        lambda op, x: 0.0 - op.Exp(x),
        lambda op, x: 1.0 / op.Exp(x),
        lambda op, x: op.Exp(x) + np.zeros((2, 3, 4), np.float32),  # it broadcasts
        lambda op, x: op.Where(np.eye(3, 4, dtype=bool), op.Exp(x), 0.0),
        lambda op, x: op.Transpose(op.Exp(x), perm=[1, 0]),
    ],
)
def test_what_does_something_stays(make):
    applied(Simplify(), graph(make, x=[3, 4]), count=0)


def test_equal_nodes_become_one():
    def make(op, x, y):
        return op.Exp(x + y) * op.Tanh(x + y), op.Exp(x + y)

    made = applied(ShareCommonSubexpressions(), graph(make, x=[3], y=[3]), count=3)
    assert sorted(operators(made)) == ["Add", "Exp", "Mul", "Tanh"]


def test_other_attributes_make_other_nodes():
    model = graph(lambda op, x: op.Softmax(x, axis=0) + op.Softmax(x, axis=1), x=[3, 4])
    assert len(operators(applied(ShareCommonSubexpressions(), model, count=0))) == 3


def test_two_dropouts_stay_two():
    model = graph(lambda op, x: op.Dropout(x, 0.5, True) + op.Dropout(x, 0.5, True), x=[8])
    made, changed = ShareCommonSubexpressions().apply(model)
    assert changed == 0 and operators(made).count("Dropout") == 2


class _Broken(Pass):
    def apply(self, model):
        made = rebuild(model)
        made.graph[0].outputs[0].shape = ir.Shape([7, 7])
        return made, 1


def test_the_verifier_names_the_pass_that_broke_the_graph():
    with pytest.raises(GraphError, match="after pass _Broken"):
        run_passes(graph(lambda op, x: op.Exp(x), x=[3, 4]), [Simplify(), _Broken()])


def test_outputs_that_turn_out_equal_keep_their_own_names():
    model = graph(lambda op, x: (op.Tanh(x), op.Exp(x), op.Tanh(x)), x=[2, 3])
    # The later output is computed first, so the shared value comes with the name that belongs to the other.
    first, middle, last = model.graph.outputs
    model.graph.outputs[0], model.graph.outputs[2] = last, first
    made = applied(ShareCommonSubexpressions(), model, count=0)
    assert sorted(operators(made)) == ["Exp", "Identity", "Tanh"]
    assert [value.name for value in made.graph.outputs] == ["y2", "y1", "y0"]
