"""A graph taken apart and put together is the same graph; with other numbers it is the one made at other sizes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ontrain.graph import Builder, new_model, to_text, verify
from ontrain.graph.sheet import UnreadableError, read, write


def graph(batch, length, *, op_type="Relu"):
    x = ir.Value(name="x", shape=ir.Shape([batch, length]), type=ir.TensorType(ir.DataType.FLOAT))
    model = new_model([x], "graph")
    op = Builder(model.graph)
    flat = op.Reshape(x, [batch * length])
    y = op.Add(getattr(op, op_type)(flat), op.const(np.arange(batch * length, dtype=np.float32)))
    halves = op.Split(op.Concat(y, y, axis=0), num_outputs=2, axis=0, outputs=2)
    halves[1].name = "y"
    model.graph.outputs.append(halves[1])
    return model


def test_a_graph_is_put_together_as_it_was():
    model = graph(2, 3)
    sheet = read(model)
    again = write(model, sheet.numbers, {})
    verify(again)
    assert to_text(again) == to_text(model) and read(again) == sheet


def test_other_numbers_and_constants_make_the_graph_of_other_sizes():
    small, large = graph(2, 3), graph(4, 5)
    sheet = read(large)
    assert sheet.structure == read(small).structure and len(sheet.numbers) == len(read(small).numbers)
    written = write(small, sheet.numbers, {place: tensor.numpy() for place, tensor in enumerate(sheet.constants)})
    verify(written)
    again = read(written)
    assert again.numbers == sheet.numbers
    for constant, expected in zip(again.constants, sheet.constants, strict=True):
        np.testing.assert_array_equal(constant.numpy(), expected.numpy())


def test_another_operator_is_another_structure():
    assert read(graph(2, 3)).structure != read(graph(2, 3, op_type="Tanh")).structure


def test_constants_that_hold_the_same_are_shared():
    first, second = read(graph(2, 3)), read(graph(2, 3))
    assert all(a is b for a, b in zip(second.sharing(first).constants, first.constants, strict=True))


def test_a_size_that_is_not_known_is_not_read():
    with pytest.raises(UnreadableError, match="the shape of 'x' depends on data"):
        read(graph_of_unknown())


def graph_of_unknown():
    x = ir.Value(name="x", shape=ir.Shape(["batch"]), type=ir.TensorType(ir.DataType.FLOAT))
    return new_model([x], "graph")
