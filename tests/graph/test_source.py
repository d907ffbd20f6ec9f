"""A node knows the line of the user's model that made it, and prints in one line."""

from __future__ import annotations

import pytest

from ontrain.graph import Builder, annotate, describe, inherit_source, new_model, shape_text, source_of
from tests.graph.values import value


@pytest.fixture
def op():
    return Builder(new_model([value("x", ["n", 4])], "g").graph)


@pytest.mark.parametrize(
    ("source", "module", "text"),
    [
        ("a.py:3: y", "layer.0", "a.py:3: y (in layer.0)"),
        ("a.py:3: y", None, "a.py:3: y"),
        (None, "layer.0", "layer.0"),
        (None, None, None),
    ],
)
def test_line_and_module_are_said_as_far_as_they_are_known(op, source, module, text):
    node = op.Exp(op.graph.inputs[0]).producer()
    annotate(node, source, module)
    assert source_of(node) == text


def test_nodes_made_for_another_inherit_its_line_and_keep_their_own(op):
    first = op.Exp(op.graph.inputs[0]).producer()
    annotate(first, "a.py:3: y", None)
    nodes = []
    with inherit_source(first, nodes):
        nodes += [op.Tanh(op.graph.inputs[0]).producer(), op.Sin(op.graph.inputs[0]).producer()]
        annotate(nodes[1], "b.py:1: z", None)
    assert [source_of(node) for node in nodes] == ["a.py:3: y", "b.py:1: z"]


def test_a_node_prints_its_operands_absent_ones_too(op):
    text = describe(op.Clip(op.graph.inputs[0], None, 1.0).producer())
    assert text.startswith("Clip(x: float[n, 4], -, ") and text.endswith("float[n, 4]")
    assert shape_text(None) == "absent"
