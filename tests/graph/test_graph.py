"""Building, folding, specialising and verifying graphs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from ontrain import GraphError, InputError
from ontrain.graph import Builder, Role, new_model, set_role, set_updates, specialise, static_dims, to_text, verify
from ontrain.graph.fold import evaluate

FLOAT = ir.TensorType(ir.DataType.FLOAT)


def value(name, shape, dtype=ir.DataType.FLOAT):
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))


def test_a_node_knows_its_shape_and_dtype_at_once():
    x, y = value("x", ["n", 4]), value("y", [4, 5])
    op = Builder(new_model([x, y], "g").graph)
    z = op.MatMul(x, y)
    assert z.dtype == ir.DataType.FLOAT and [str(d) for d in z.shape] == ["n", "5"]


def test_numbers_take_the_dtype_of_the_operand_beside_them():
    x, i = value("x", [3], ir.DataType.DOUBLE), value("i", [3], ir.DataType.INT32)
    op = Builder(new_model([x, i], "g").graph)
    assert op.Mul(x, 2).dtype == ir.DataType.DOUBLE
    assert op.Add(1, i).dtype == ir.DataType.INT32
    assert op.Where(op.Greater(x, 0.5), x, 0.0).dtype == ir.DataType.DOUBLE


def test_constants_are_folded_and_equal_ones_made_once():
    op = Builder(new_model([], "g").graph)
    a = op.Add(op.const(2.0), op.const(3.0))
    assert a.const_value.numpy() == 5.0 and op.const(5.0) is a
    assert not list(op.graph)


def test_large_constants_with_other_contents_stay_apart():
    op = Builder(new_model([], "g").graph)
    a, b = op.const(np.zeros(5000, np.float32)), op.const(np.arange(5000, dtype=np.float32))
    assert a is not b and op.const(np.zeros(5000, np.float32)) is a


def test_contents_that_differ_behind_a_common_beginning_stay_apart():
    op = Builder(new_model([], "g").graph)
    ends = np.zeros(5000, np.float32)
    ends[-1] = 1
    assert op.const(np.zeros(5000, np.float32)) is not op.const(ends)


def test_equal_bytes_of_another_dtype_are_another_constant():
    op = Builder(new_model([], "g").graph)
    made = [op.const(np.zeros(2, dtype)) for dtype in (np.float32, np.int32, np.uint32)]
    assert [value.dtype for value in made] == [ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.UINT32]


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


@pytest.mark.parametrize("axis", [-3, 2])
def test_an_axis_beside_the_shape_is_refused_before_onnx_reads_there(axis):
    x = value("x", [3, 4])
    op = Builder(new_model([x], "g").graph)
    with pytest.raises(GraphError, match=f"Softmax has the axis {axis} for an input of 2 dimensions"):
        op.Softmax(x, axis=axis)
    assert static_dims(op.Softmax(x, axis=-2)) == static_dims(op.Softmax(x, axis=1)) == (3, 4)


def test_what_does_not_fit_names_the_operator_and_the_shapes():
    x, y = value("x", [3, 4]), value("y", [5, 6])
    op = Builder(new_model([x, y], "g").graph)
    with pytest.raises(GraphError, match=r"MatMul\(x: float\[3, 4\], y: float\[5, 6\]\)"):
        op.MatMul(x, y)


def test_specialising_folds_all_arithmetic_on_shapes():
    x = value("x", ["b", "s", 8])
    model = new_model([x], "g")
    op = Builder(model.graph)
    shape = op.Concat(op.Shape(x, start=0, end=1), [-1], op.Mul(op.Shape(x, start=2, end=3), [2]), axis=0)
    y = op.Reshape(op.Exp(x), shape)
    model.graph.outputs.append(y)
    made = specialise(model, {"x": (2, 6, 8)})
    assert [n.op_type for n in made.graph] == ["Exp", "Reshape"]
    assert static_dims(made.graph.outputs[0]) == (2, 3, 16)
    assert [n.op_type for n in model.graph].count("Shape") == 1, "the model itself stays as it was"


def test_a_fixed_dimension_is_not_overruled():
    x = value("x", ["b", 8])
    model = new_model([x], "g")
    model.graph.outputs.append(Builder(model.graph).Exp(x))
    with pytest.raises(InputError, match=r"shape \[2, 9\], the graph expects \['b', 8\]"):
        specialise(model, {"x": (2, 9)})


def test_the_verifier_finds_each_kind_of_damage():
    def fresh():
        x = value("x", [3])
        model = new_model([x], "g")
        op = Builder(model.graph)
        model.graph.outputs.append(op.Tanh(op.Exp(x)))
        return model, list(model.graph)

    verify(fresh()[0])

    model, (exp, tanh) = fresh()
    model.graph.remove(exp)
    model.graph.insert_after(tanh, exp)
    with pytest.raises(GraphError, match="before it is defined"):
        verify(model)

    model, (exp, tanh) = fresh()
    exp.outputs[0].shape = ir.Shape([4])
    with pytest.raises(GraphError, match="where its operator makes"):
        verify(model)

    model, (exp, tanh) = fresh()
    exp.outputs[0].dtype = ir.DataType.DOUBLE
    with pytest.raises(GraphError):
        verify(model)

    model, (exp, tanh) = fresh()
    tanh.outputs[0].name = exp.outputs[0].name
    with pytest.raises(GraphError, match="defined twice"):
        verify(model)

    model, _ = fresh()
    set_updates(model.graph.outputs[0], "nothing")
    with pytest.raises(GraphError, match="no resident input"):
        verify(model)

    model, _ = fresh()
    model.graph.inputs.append(set_role(value("w", [3]), Role.PARAMETER))
    set_updates(model.graph.outputs[0], "x")  # there is a resident input, and x is none
    with pytest.raises(GraphError, match="'x', which is no resident input"):
        verify(model)


def test_a_graph_prints_roles_sources_and_updates():
    w = set_role(value("w", [3]), Role.PARAMETER)
    model = new_model([w], "g")
    y = Builder(model.graph).Exp(w)
    model.graph.outputs.append(set_updates(y, "w"))
    text = to_text(model)
    assert "in  w: float[3] (parameter)" in text and "-> w" in text and "Exp(w: float[3])" in text


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
    (found,) = evaluate(node)
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == wanted.dtype


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_a_reshape_with_wildcards_folds_like_numpy(shape, data):
    array = np.arange(int(np.prod(shape))).reshape(shape)
    target = [0 if data.draw(st.booleans()) else d for d in shape]
    target[data.draw(st.integers(0, len(shape) - 1))] = -1
    op = Builder(new_model([], "g").graph)
    np.testing.assert_array_equal(op.Reshape(array, target).const_value.numpy(), array)
