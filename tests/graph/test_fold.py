"""What is computed beforehand equals what onnx's evaluator and numpy make of it; chance is left to the run."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, strategies as st
from onnx.reference import ReferenceEvaluator

from ontrain.graph import Builder, new_model, static_dims
from ontrain.graph.fold import evaluate


def test_a_zero_in_a_target_shape_is_a_size_where_the_node_says_so():
    op = Builder(new_model([], "g").graph)
    empty = op.const(np.zeros((0, 3), np.float32))
    assert static_dims(op.Reshape(empty, [3, 0], allowzero=1)) == (3, 0)
    assert static_dims(op.Reshape(op.const(np.zeros((2, 3), np.float32)), [0, 3])) == (2, 3)


@pytest.mark.parametrize(
    "draw",
    [
        lambda op, x: op.Dropout(x, 0.5, True),
        lambda op, x: op.RandomNormalLike(x),
        lambda op, x: op.RandomUniformLike(x),
        lambda op, x: op.Bernoulli(x),
    ],
)
def test_what_is_drawn_of_a_constant_is_not_drawn_once_for_all(draw):
    op = Builder(new_model([], "g").graph)
    assert draw(op, op.const(np.full(4, 0.5, np.float32))).const_value is None


CASES = {
    "Gather": ([np.arange(12).reshape(3, 4), np.array([2, -1])], {"axis": 1}),
    "Slice": ([np.arange(12).reshape(3, 4), np.array([1]), np.array([2**62]), np.array([1])], {}),
    "Concat": ([np.array([1, 2]), np.array([3])], {"axis": 0}),
    "Unsqueeze": ([np.arange(6).reshape(2, 3), np.array([0, -1])], {}),
    "Squeeze": ([np.arange(6).reshape(1, 6, 1), np.array([0])], {}),
    "Cast": ([np.array([1.7, -1.7], np.float32)], {"to": 7}),
    "Reshape": ([np.arange(6).reshape(2, 3), np.array([0, -1])], {}),
    "Div": ([np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])], {}),
    "Range": ([np.array(2), np.array(9), np.array(3)], {}),
    "Where": ([np.array([True, False]), np.array([1, 2]), np.array(9)], {}),
    "Transpose": ([np.arange(6).reshape(1, 2, 3)], {"perm": [2, 0, 1]}),
    "Expand": ([np.arange(3).reshape(3, 1), np.array([2, 1, 4])], {}),
    "Less": ([np.arange(3), np.array(1)], {}),
}


@pytest.mark.parametrize("op_type", CASES)
def test_our_folding_equals_onnxs_evaluator(op_type):
    arrays, attributes = CASES[op_type]
    inputs = [ir.Value(name=f"i{k}", const_value=ir.tensor(a)) for k, a in enumerate(arrays)]
    attrs = [ir.convenience.convert_attribute(k, v) for k, v in attributes.items()]
    node = ir.Node("", op_type, inputs, attrs, outputs=[ir.Value(name="o")])
    (wanted,) = ReferenceEvaluator(ir.to_proto(node)).run(None, {f"i{k}": a for k, a in enumerate(arrays)})
    (folded,) = evaluate(node)
    np.testing.assert_array_equal(folded, wanted)
    assert folded.dtype == wanted.dtype


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_a_reshape_with_wildcards_folds_like_numpy(shape, data):
    array = np.arange(int(np.prod(shape))).reshape(shape)
    target = [0 if data.draw(st.booleans()) else d for d in shape]
    target[data.draw(st.integers(0, len(shape) - 1))] = -1
    op = Builder(new_model([], "g").graph)
    np.testing.assert_array_equal(op.Reshape(array, target).const_value.numpy(), array)


@pytest.mark.parametrize(
    ("op_type", "arrays", "shape"),
    [
        ("Unsqueeze", [np.array(7), np.array(0)], (1,)),
        ("Squeeze", [np.array([7]), np.array(0)], ()),
        ("Slice", [np.arange(4), np.array(1), np.array(3), np.array(0), np.array(1)], (2,)),
        ("Reshape", [np.arange(6).reshape(2, 3), np.array(-1)], (6,)),
        ("Expand", [np.array(7), np.array(3)], (3,)),
    ],
)
def test_one_axis_or_size_may_be_a_number(op_type, arrays, shape):
    """As exporters write them; onnxruntime takes a number for the axes of an Unsqueeze."""
    inputs = [ir.Value(name=f"i{k}", const_value=ir.tensor(a)) for k, a in enumerate(arrays)]
    (folded,) = evaluate(ir.Node("", op_type, inputs, outputs=[ir.Value(name="o")]))
    assert folded.shape == shape
