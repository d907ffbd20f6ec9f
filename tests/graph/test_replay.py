"""Nodes of one graph repeated in another."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ontrain.graph import Builder, new_model
from ontrain.graph.plain_control import copy_control
from ontrain.graph.replay import Replay


def source():
    x = ir.Value(name="x", shape=ir.Shape([2, 3]), type=ir.TensorType(ir.DataType.FLOAT))
    model = new_model([x], "source")
    op = Builder(model.graph)
    y = op.Add(op.Tanh(x), op.const(np.ones(3, np.float32)))
    model.graph.outputs.append(y)
    return model, x, y


def target(*shape):
    x = ir.Value(name="z", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
    return Builder(new_model([x], "target").graph), x


@pytest.mark.parametrize("shape", [(2, 3), (7, 3)], ids=str)
def test_nodes_are_inferred_for_their_new_inputs(shape):
    model, x, y = source()
    op, z = target(*shape)
    replay = Replay(op, {x: z}, control=copy_control)
    replay.run(list(model.graph))
    assert [node.op_type for node in op.graph] == ["Tanh", "Add"]
    assert tuple(replay.find(y).shape) == shape and replay.find(y) is not y


def test_a_rewrite_takes_the_place_of_a_node():
    model, x, y = source()
    op, z = target(2, 3)
    replay = Replay(
        op, {x: z}, control=copy_control,
        rewrite=lambda op, node, inputs: [op.Sin(inputs[0])] if node.op_type == "Tanh" else None,
    )  # fmt: skip
    replay.run(list(model.graph))
    assert [node.op_type for node in op.graph] == ["Sin", "Add"]


def test_what_becomes_constant_is_folded():
    model, x, y = source()
    op, _ = target(2, 3)
    replay = Replay(op, {x: op.const(np.zeros((2, 3), np.float32))}, control=copy_control)
    replay.run(list(model.graph))
    np.testing.assert_array_equal(replay.find(y).const_value.numpy(), np.ones((2, 3), np.float32))
