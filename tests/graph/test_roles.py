"""Marks on values: what an input is, and what an output is to which input."""

from __future__ import annotations

import pytest

from ontrain.graph import (
    Builder,
    Role,
    by_role,
    gradient_of,
    new_model,
    rebuild,
    role_of,
    set_gradient_of,
    set_role,
    set_updates,
    updates_of,
)
from tests.graph.values import value


def test_an_unmarked_input_is_plain_input():
    assert role_of(value("x", [3])) is Role.INPUT


@pytest.mark.parametrize("role", Role)
def test_what_stays_with_the_session_is_parameters_buffers_and_state(role):
    assert role.resident == (role.value in ("parameter", "buffer", "state"))


def test_marks_survive_a_rebuild():
    x, w = value("x", [3]), set_role(value("w", [3]), Role.PARAMETER)
    model = new_model([x, w], "g")
    op = Builder(model.graph)
    model.graph.outputs.extend([set_updates(op.Exp(w), "w"), set_gradient_of(op.Mul(x, w), "w")])
    graph = rebuild(model).graph
    assert [v.name for v in by_role(graph, Role.PARAMETER)] == ["w"]
    assert updates_of(graph.outputs[0]) == gradient_of(graph.outputs[1]) == "w"
    assert updates_of(graph.outputs[1]) is gradient_of(graph.outputs[0]) is None
