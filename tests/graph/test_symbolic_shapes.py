"""Shapes of outputs in terms of the inputs' dimensions."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ontrain.graph import Builder, new_model
from ontrain.graph.symbolic_shapes import output_shapes


def shapes(make, *dims):
    x = ir.Value(name="x", shape=ir.Shape(dims), type=ir.TensorType(ir.DataType.FLOAT))
    model = new_model([x], "shapes")
    value = make(Builder(model.graph), x)
    value.name = "y"
    model.graph.outputs.append(value)
    return output_shapes(model)["y"]


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda op, x: op.Relu(x), ["batch", "length", 4]),
        (lambda op, x: op.Reshape(x, [-1, 4]), ["batch*length", 4]),
        (lambda op, x: op.Concat(x, x, axis=1), ["batch", "2*length", 4]),
        (lambda op, x: op.Pad(x, [0, 1, 0, 0, 0, 0]), ["batch", "length + 1", 4]),
        (lambda op, x: op.Slice(x, [0], [5], [2]), ["batch", "length", 4]),
        (lambda op, x: op.Slice(x, [0], [-1], [1]), ["batch", None, 4]),
        (lambda op, x: op.MaxPool(x, kernel_shape=[2], strides=[2]), ["batch", "length", 2]),
    ],
)
def test_dimensions_are_sums_of_products_of_the_inputs(make, shape):
    assert shapes(make, "batch", "length", 4) == shape


def test_what_halves_a_dimension_has_no_name():
    assert shapes(lambda op, x: op.Slice(x, [0], [1 << 40], [0], [2]), "batch", 4) == [None, 4]
