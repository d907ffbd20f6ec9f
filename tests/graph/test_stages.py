"""Graphs cut at the nodes whose results have sizes that follow from values."""

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder, Role, new_model, set_role
from ontrain.graph.stages import is_sized_by_values, stages, step_of_adjoint


def value(name, shape, dtype=ir.DataType.FLOAT, role=Role.INPUT):
    return set_role(ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape)), role)


def chosen_rows():
    """relu(x)[mask] @ transposed weight, and the graph's values."""
    x, mask = value("x", ["n", 4]), value("mask", ["n"], ir.DataType.BOOL)
    weight = value("weight", [3, 4], role=Role.PARAMETER)
    model = new_model([x, mask, weight], "chosen")
    op = Builder(model.graph)
    h, turned = op.Relu(x), op.Transpose(weight, perm=[1, 0])
    places = op.NonZero(mask)
    rows = op.GatherND(h, op.Transpose(places, perm=[1, 0]))
    filled = op.Expand(op.const(np.float32(1)), op.Concat(op.Shape(places, start=1), op.const(np.array([3])), axis=0))
    y = op.Add(op.MatMul(rows, turned), filled)
    model.graph.outputs.append(y)
    return model, h, places, y


def test_regions_and_steps_alternate():
    model, h, places, y = chosen_rows()
    first, step, last = stages(model.graph)
    assert [v.name for v in first.reads] == ["x"] and first.outputs == [h] and first.step is None
    assert step.step.op_type == "NonZero" and step.outputs == [places]
    assert set(last.reads) == {h, places, model.graph.inputs[2]} and last.outputs == [y]


def test_what_follows_from_shapes_is_computed_where_it_is_needed():
    model, _, places, _ = chosen_rows()
    crossing = [v for stage in stages(model.graph) for v in stage.outputs]
    assert all(v.dtype != ir.DataType.INT64 or v is places for v in crossing)


def test_a_size_out_of_a_tensor_is_a_step_and_one_of_a_shape_is_none():
    x = value("x", ["n"])
    model = new_model([x], "filled")
    op = Builder(model.graph)
    model.graph.outputs.append(op.Add(op.ConstantOfShape(op.Shape(x)), x))
    assert not is_sized_by_values(model.graph)
    number = op.Cast(op.ReduceMax(x, keepdims=1), to=ir.DataType.INT64)
    model.graph.outputs.append(op.ConstantOfShape(number))
    assert is_sized_by_values(model.graph)
    assert [stage.step and stage.step.op_type for stage in stages(model.graph)] == [None, "ConstantOfShape"]


def test_a_mask_that_follows_from_the_length_is_made_before_the_step_that_reads_it():
    x = value("x", ["n"])
    model = new_model([x], "all")
    op = Builder(model.graph)
    mask = op.Greater(op.Expand(op.const(np.float32(1)), op.Shape(x)), op.const(np.float32(0)))
    model.graph.outputs.append(op.NonZero(mask))
    first, step = stages(model.graph)
    assert first.step is None and first.outputs == [mask] and first.reads == [x]
    assert step.step.op_type == "NonZero" and step.reads == [mask]


def test_a_size_that_the_last_step_makes_is_read_behind_it():
    x = value("x", ["n"])
    model = new_model([x], "counted")
    op = Builder(model.graph)
    y = op.Relu(x)
    places = op.NonZero(op.Greater(y, op.const(np.float32(0))))
    count = op.Shape(places, start=1)
    model.graph.outputs.extend([y, count])
    first, step, last = stages(model.graph)
    assert first.reads == [x] and y in first.outputs and count not in first.outputs
    assert step.step.op_type == "NonZero" and step.outputs == [places]
    assert last.step is None and last.reads == [places] and last.outputs == [count]


def own_backward(mask_of):
    """A function of x whose own backward doubles the adjoint's rows that a mask names: the graph, and its last node."""
    x = value("x", ["n", 4])
    model = new_model([x], "own")
    op = Builder(model.graph)
    y = op.Relu(x)
    adjoint = op.composite("Adjoint", y)
    places = op.NonZero(op.Greater(mask_of(x, adjoint), op.const(np.float32(0))))
    doubled = op.Mul(adjoint, op.const(np.float32(2)))
    rows = op.GatherND(doubled, op.Transpose(places, perm=[1, 0]))
    gradient = op.Add(adjoint, op.ReduceSum(rows, keepdims=0))
    end = op.composite("Through", y, adjoint, x, gradient)
    model.graph.outputs.append(end)
    return model, end


def test_a_backward_of_the_users_own_lies_whole_in_one_region():
    model, _ = own_backward(lambda x, _: x)
    assert step_of_adjoint(model.graph) is None
    first, step, last = stages(model.graph)
    assert step.step.op_type == "NonZero"
    crossing = {v.producer().op_type for stage in (first, step) for v in stage.outputs}
    assert crossing == {"Relu", "Greater", "NonZero"}
    assert {v.name for v in last.reads} >= {"x"}


def test_a_step_that_reads_an_adjoint_is_named():
    model, _ = own_backward(lambda _, adjoint: adjoint)
    assert step_of_adjoint(model.graph).op_type == "NonZero"
