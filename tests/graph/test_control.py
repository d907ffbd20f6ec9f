"""Branches and loops that are kept, and those that cannot be."""

from __future__ import annotations

import pytest

from ontrain.errors import GraphError
from ontrain.graph import control
from tests.control.forms import nothing, specialised
from tests.control.models import GROWING, MODELS, WHILE, ControlModel


def test_changing_shapes_in_a_kept_loop_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "UNROLL_LIMIT", 0)
    with pytest.raises(GraphError, match=r"(?s)double\[2, 3\] before an iteration and double\[4, 3\] after.*way out"):
        specialised(GROWING)


def test_branches_of_different_shapes_are_refused_by_name() -> None:
    text = MODELS[4].text.replace("b = Add(r, p)", "b = Concat<axis = 0>(r, p)")
    with pytest.raises(GraphError, match=r"(?s)one branch of an If gives .*node: If"):
        specialised(ControlModel("shapes", text.replace("double[2,3] b", "double[K,3] b"), MODELS[4].inputs, nothing))


def test_rows_of_a_loop_of_unknown_length_are_refused_by_name() -> None:
    text = WHILE.text
    for old, new in (
        ("(double[2,3] y) {", "(double[2,3] y, double[T,2,3] rows) {"),
        ("y = Loop", "y, rows = Loop"),
        ("(bool c1, double[2,3] new)", "(bool c1, double[2,3] new, double[2,3] t)"),
    ):
        text = text.replace(old, new)
    with pytest.raises(GraphError, match=r"(?s)how often it runs depends on the data.*Loop"):
        specialised(ControlModel("rows", text, WHILE.inputs, nothing))
