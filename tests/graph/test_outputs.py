"""Outputs that nobody wants are dropped with what only they needed, unless the numbers of others hang on them."""

from __future__ import annotations

from ontrain.graph import Builder, drop_outputs, new_model, set_updates
from tests.graph.values import value


def named(graph, *values):
    for i, output in enumerate(values):
        output.name = f"y{i}"
        graph.outputs.append(output)


def test_what_only_a_dropped_output_needed_goes_with_it():
    x = value("x", [3])
    model = new_model([x], "g")
    op = Builder(model.graph)
    shared = op.Exp(x)
    named(model.graph, op.Tanh(shared), op.Sin(shared))
    assert set(drop_outputs(model.graph, {"y0"})) == {"y1"}
    assert [node.op_type for node in model.graph] == ["Exp", "Tanh"]


def test_next_values_of_residents_stay():
    x = value("x", [3])
    model = new_model([x], "g")
    op = Builder(model.graph)
    named(model.graph, op.Tanh(x), set_updates(op.Exp(x), "x"))
    assert set(drop_outputs(model.graph, set())) == {"y0"}
    assert [node.op_type for node in model.graph] == ["Exp"]


def test_an_output_for_which_alone_numbers_are_drawn_stays():
    x = value("x", [3])
    model = new_model([x], "g")
    op = Builder(model.graph)
    named(model.graph, op.Tanh(x), op.Dropout(x, 0.5, True), op.Exp(x))
    assert set(drop_outputs(model.graph, {"y0"})) == {"y2"}
    assert [value.name for value in model.graph.outputs] == ["y0", "y1"]
