"""Branches and loops as one instruction of the torch provider, whose body has its memory inside of the plan."""

from __future__ import annotations

import numpy as np
import pytest

from ontrain.graph import control
from ontrain.providers import get_provider
from tests.control.forms import run, specialised
from tests.control.models import GROWING, MODELS

KEPT = [case for case in MODELS if case is not GROWING]


@pytest.mark.parametrize("case", KEPT, ids=[case.name for case in KEPT])
def test_a_body_computes_what_the_reference_computes(case, monkeypatch):
    monkeypatch.setattr(control, "UNROLL_LIMIT", 0)
    model = specialised(case)
    wanted = run(model, "ReferenceExecutionProvider", case.inputs)
    actual = run(model, "TorchExecutionProvider", case.inputs)
    assert wanted.keys() == actual.keys() and wanted
    for name, expected in wanted.items():
        np.testing.assert_allclose(actual[name], expected, rtol=1e-9, atol=1e-12)


def test_a_body_runs_again_in_the_memory_of_the_first_run(monkeypatch):
    monkeypatch.setattr(control, "UNROLL_LIMIT", 0)
    (case,) = (case for case in MODELS if case.name == "while")
    provider = get_provider("TorchExecutionProvider")
    executable = provider.compile(specialised(case), provider.create_state([]))
    first = {name: value.clone() for name, value in executable.run(case.inputs).items()}
    for name, value in executable.run(case.inputs).items():
        np.testing.assert_array_equal(value, first[name])
