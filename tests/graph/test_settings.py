"""Which inputs of a graph say how operators work, so that a plan has to know their values."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ontrain.graph import Builder, new_model, static_dims
from ontrain.graph.settings import fed_settings, with_values
from tests.graph.values import value

WHOLE = ir.DataType.INT64


def reshaped(shape_of=lambda op, sizes: sizes):
    x, sizes = value("x", [6]), value("sizes", [2], WHOLE)
    model = new_model([x, sizes], "g")
    op = Builder(model.graph)
    model.graph.outputs.append(op.Reshape(x, shape_of(op, sizes)))
    return model


def test_a_size_is_a_setting_and_data_is_not():
    assert fed_settings(reshaped().graph, {"x", "sizes"}) == ["sizes"]


def test_what_a_setting_is_computed_from_is_one_too():
    assert fed_settings(reshaped(lambda op, sizes: op.Add(sizes, op.const(np.array([0, 1])))).graph, {"sizes"}) == [
        "sizes"
    ]


def test_of_what_only_the_shape_is_asked_the_values_do_not_matter():
    assert fed_settings(reshaped(lambda op, sizes: op.Mul(op.Shape(sizes), 3)).graph, {"x", "sizes"}) == []


@pytest.mark.parametrize("reduction", ["ReduceSum", "ReduceMax", "ReduceL2"])
def test_the_axes_of_a_reduction_are_settings(reduction):
    x, axes = value("x", [2, 3]), value("axes", [1], WHOLE)
    model = new_model([x, axes], "g")
    model.graph.outputs.append(getattr(Builder(model.graph), reduction)(x, axes))
    assert fed_settings(model.graph, {"x", "axes"}) == ["axes"]


def test_values_that_are_given_become_constants_of_a_copy():
    model = reshaped()
    bound = with_values(model, {"sizes": np.array([2, 3])})
    assert [v.name for v in bound.graph.inputs] == ["x"] and len(model.graph.inputs) == 2
    assert bound.graph.initializers["sizes"].const_value.numpy().tolist() == [2, 3]
    assert static_dims(bound.graph.inputs[0]) == (6,)
