"""Branches on constants and loops of known length are written out."""

from __future__ import annotations

import numpy as np

from ontrain.graph import all_nodes
from tests.control.forms import PROVIDERS, run, specialised
from tests.control.models import FOR, NESTED, ControlModel


def test_a_constant_condition_leaves_one_branch() -> None:
    text = NESTED.text.replace("positive = Greater(sum, zero)", "positive = Identity(c0)")
    model = specialised(ControlModel("constant", text, NESTED.inputs, NESTED.twin))
    types = [node.op_type for node in all_nodes(model.graph)]
    assert types == ["MatMul", "Sin", "Sub"] * 6


def test_a_loop_without_an_iteration_hands_on_its_input() -> None:
    text = FOR.text.replace("n = {5}", "n = {0}").replace("double[5,2,3]", "double[K,2,3]")
    for name in PROVIDERS:
        outputs = run(specialised(ControlModel("none", text, FOR.inputs, FOR.twin)), name, FOR.inputs)
        np.testing.assert_array_equal(outputs["y"], FOR.inputs["x"])
        assert outputs["rows"].shape == (0, 2, 3)
