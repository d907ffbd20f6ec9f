"""A graph made again for shapes that are known."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ontrain import InputError
from ontrain.graph import Builder, builder, content_of, new_model, rebuild, specialise, static_dims
from tests.graph.values import value


def test_specialising_folds_all_arithmetic_on_shapes():
    x = value("x", ["b", "s", 8])
    model = new_model([x], "g")
    op = Builder(model.graph)
    shape = op.Concat(op.Shape(x, start=0, end=1), [-1], op.Mul(op.Shape(x, start=2, end=3), [2]), axis=0)
    y = op.Reshape(op.Exp(x), shape)
    model.graph.outputs.append(y)
    static = specialise(model, {"x": (2, 6, 8)})
    assert [n.op_type for n in static.graph] == ["Exp", "Reshape"]
    assert static_dims(static.graph.outputs[0]) == (2, 3, 16)
    assert [n.op_type for n in model.graph].count("Shape") == 1, "the model itself stays as it was"


def test_a_fixed_dimension_is_not_overruled():
    x = value("x", ["b", 8])
    model = new_model([x], "g")
    model.graph.outputs.append(Builder(model.graph).Exp(x))
    with pytest.raises(InputError, match=r"shape \[2, 9\], the graph expects \['b', 8\]"):
        specialise(model, {"x": (2, 9)})


def test_a_large_constant_is_read_once_however_often_its_graph_is_rebuilt(monkeypatch):
    x = ir.Value(name="x", shape=ir.Shape([100]), type=ir.TensorType(ir.DataType.FLOAT))
    model = new_model([x], "large")
    op = Builder(model.graph)
    model.graph.outputs.append(op.Add(x, op.const(np.arange(100, dtype=np.float32))))
    reads = []
    monkeypatch.setattr(builder, "content_of", lambda array: reads.append(array) or content_of(array))
    again = rebuild(rebuild(model))
    assert not reads
    (constant,) = again.graph.initializers.values()
    constant.const_value = ir.tensor(np.ones(100, np.float32), name=constant.name)
    (settled,) = rebuild(again).graph.initializers.values()
    np.testing.assert_array_equal(settled.const_value.numpy(), np.ones(100))
    assert len(reads) == 1
