"""What does not fit an operator is refused by name."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ontrain import GraphError
from ontrain.graph import Builder, new_model
from ontrain.graph.infer import infer_node, take_shape
from tests.graph.values import value


def test_what_does_not_fit_names_the_operator_and_the_shapes():
    x, y = value("x", [3, 4]), value("y", [5, 6])
    op = Builder(new_model([x, y], "g").graph)
    with pytest.raises(GraphError, match=r"MatMul\(x: float\[3, 4\], y: float\[5, 6\]\)"):
        op.MatMul(x, y)


@pytest.mark.parametrize(
    "op_type, first, second",
    [
        ("Reshape", np.array([2, 6]), np.array([3, 4])), ("Expand", np.array([1, 3, 4]), np.array([5, 3, 4])),
        ("Tile", np.array([1, 2]), np.array([2, 1])),
    ],
)  # fmt: skip
def test_nodes_that_differ_in_a_constant_alone_have_their_own_shapes(op_type, first, second):
    shapes = []
    for constant in (first, second, first):
        x = ir.Value(name="x", shape=ir.Shape([3, 4]), type=ir.TensorType(ir.DataType.FLOAT))
        size = ir.Value(name="s", shape=ir.Shape(constant.shape), type=ir.TensorType(ir.DataType.INT64))
        size.const_value = ir.tensor(constant)
        ((_, shape),) = infer_node(ir.Node("", op_type, [x, size]))
        shapes.append(tuple(shape))
        with pytest.raises(TypeError, match="frozen"):
            shape[0] = 77  # others have the same shape
    assert shapes[0] == shapes[2] != shapes[1]


def test_parts_have_their_sizes_however_many_they_are():
    x = value("x", [2, 600])
    op = Builder(new_model([x], "g").graph)
    parts = op.Split(x, [1, 3] * 150, axis=1, outputs=300)
    assert [tuple(part.shape) for part in parts[:2]] == [(2, 1), (2, 3)]


def test_nodes_that_differ_in_an_attribute_or_a_type_alone_have_their_own_results():
    shapes = set()
    for dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        for axis in (0, 1):
            x = ir.Value(name="x", shape=ir.Shape([3, 4]), type=ir.TensorType(dtype))
            ((got, shape),) = infer_node(ir.Node("", "Concat", [x, x], attributes=[ir.AttrInt64("axis", axis)]))
            shapes.add((got, tuple(shape)))
    assert len(shapes) == 4


@pytest.mark.parametrize("axis, shape", [(0, (None, 4)), (-1, (3, None))])
def test_parts_whose_sizes_are_computed_have_a_type(axis, shape):
    x, sizes = value("x", [3, 4]), value("sizes", [2], ir.DataType.INT64)
    parts = infer_node(ir.Node("", "Split", [x, sizes], [ir.AttrInt64("axis", axis)], num_outputs=2))
    assert [(dtype, tuple(d if isinstance(d, int) else d.value for d in dims)) for dtype, dims in parts] == [
        (ir.DataType.FLOAT, shape)
    ] * 2


def test_a_reshape_that_stands_for_one_operator_has_the_sizes_by_name():
    x = ir.Value(name="x", shape=ir.Shape(["rows", None, 3]), type=ir.TensorType(ir.DataType.FLOAT))
    op = Builder(new_model([x], "shapes").graph)
    plain, marked = (op.Reshape(op.Flatten(x), op.Shape(x)) for _ in range(2))
    assert [dim.value for dim in plain.shape] == [None] * 3
    take_shape(marked)
    ((dtype, shape),) = infer_node(marked.producer())
    assert dtype == ir.DataType.FLOAT and shape == ir.Shape(["rows", None, 3])


@pytest.mark.parametrize("axes", [None, [3, 2]])
def test_a_resize_rounds_sizes_as_onnxruntime_does(axes):
    scales = [1, 1, 5 / 6, 7 / 9] if axes is None else [7 / 9, 5 / 6]
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n", 1, 6, 9]))
    scale = ir.Value(name="s", const_value=ir.tensor(np.array(scales, np.float32)))
    scale.shape, scale.dtype = scale.const_value.shape, ir.DataType.FLOAT
    attributes = [] if axes is None else [ir.AttrInt64s("axes", axes)]
    (result,) = infer_node(ir.Node("", "Resize", [x, None, scale], attributes))
    assert list(result[1])[1:] == [1, 5, 7]
