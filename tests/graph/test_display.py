"""A graph as text."""

from __future__ import annotations

from ontrain.graph import Builder, Role, new_model, set_role, set_updates, to_text
from tests.graph.values import value


def test_a_graph_prints_roles_sources_and_updates():
    w = set_role(value("w", [3]), Role.PARAMETER)
    model = new_model([w], "g")
    y = Builder(model.graph).Exp(w)
    model.graph.outputs.append(set_updates(y, "w"))
    text = to_text(model)
    assert "in  w: float[3] (parameter)" in text and "-> w" in text and "Exp(w: float[3])" in text
