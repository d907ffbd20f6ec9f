"""A graph with a backward pass falls into what its outputs need, and what only gradients need."""

from __future__ import annotations

from ontrain.graph import Builder, halves, new_model, reads, set_gradient_of, set_updates
from tests.graph.values import value


def test_nodes_go_to_the_half_that_needs_them_first():
    x, dy = value("x", [3]), value("dy", [3])
    model = new_model([x, dy], "g")
    op = Builder(model.graph)
    y = op.Tanh(x)
    square = op.Mul(y, y)
    moved = op.Exp(x)
    dx = op.Mul(dy, op.Sub(1.0, square))
    model.graph.outputs.extend([y, set_updates(moved, "x"), set_gradient_of(dx, "x")])
    forward, backward = halves(model.graph)
    assert [node.op_type for node in forward] == ["Tanh", "Exp"]
    assert [node.op_type for node in backward] == ["Mul", "Sub", "Mul"]


def test_an_operand_that_is_absent_is_not_read():
    x, low = value("x", [3]), value("low", [])
    op = Builder(new_model([x, low], "g").graph)
    assert reads(op.Clip(x, None, low).producer()) == [x, low]
