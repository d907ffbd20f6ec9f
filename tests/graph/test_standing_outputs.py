"""Outputs keep their names, and each is a value of its own."""

from __future__ import annotations

from ontrain.graph import Builder, new_model
from ontrain.graph.standing_outputs import as_output, name_outputs
from tests.graph.values import value


def test_an_input_a_constant_and_a_second_use_go_through_an_identity():
    x = value("x", ["b"])
    op = Builder(new_model([x], "g").graph)
    y = op.Exp(x)
    assert as_output(op, y, y, []) is y
    for copied, done in ((x, []), (op.const(1.0), []), (y, [y])):
        output = as_output(op, copied, y, done)
        assert output.producer().op_type == "Identity" and output.producer().inputs[0] is copied


def test_names_are_exchanged_at_once():
    x = value("x", ["b"])
    op = Builder(new_model([x], "g").graph)
    a, b, c = op.Exp(x), op.Sin(x), op.Neg(x)
    a.name, b.name, c.name = "a", "b", "c"
    name_outputs(op, [a, b, c], ["b", "a", None])
    assert (a.name, b.name, c.name) == ("b", "a", "c")
