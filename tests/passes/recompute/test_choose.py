"""A budget is kept to as the provider plans memory, and what is chosen costs as little as it may."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings, strategies as st

from ontrain import OptionError
from ontrain.graph import rebuild
from ontrain.passes.recompute import Recomputation, Recompute
from tests.passes.recompute.models import NAMES, memory_of, plan, schedule


def planned(name: str, budget: float | int | None) -> tuple[int, float]:
    result = plan(name, Recomputation(budget))
    share = result.recomputed.share if result.recomputed is not None else 0.0
    return result.executable.planned_bytes, share


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_as_little_as_can_be_reached_can_be_asked_for_and_less_is_refused_with_the_figure(name):
    before = plan(name).executable.planned_bytes
    least = plan(name, Recomputation(least=True)).executable.planned_bytes
    assert least < before
    assert planned(name, least + 1)[0] <= least + 1
    with pytest.raises(OptionError, match=r"cannot be reached: this batch needs [\d.]+ [KM]iB .* at least") as error:
        plan(name, Recomputation(0.01))
    enough = int(re.search(r"allow (\d+) bytes", error.value.way_out)[1])
    assert planned(name, enough)[0] <= enough
    told = float(re.search(r"and ([\d.]+) of it with", error.value.reason)[1])
    assert told == pytest.approx(least / before, abs=2e-3)


@settings(max_examples=8)
@given(st.sampled_from(NAMES), st.floats(0.0, 1.0), st.booleans())
def test_every_budget_that_can_be_reached_is_kept_to(name, part, as_bytes):
    before = plan(name).executable.planned_bytes
    least = plan(name, Recomputation(least=True)).executable.planned_bytes
    wanted = least + 1 + part * (before - least - 1)
    after, _ = planned(name, int(wanted) if as_bytes else min(wanted / before + 1e-9, 1.0))
    assert after <= wanted + 1


def test_a_smaller_budget_costs_more_and_a_sufficient_one_nothing():
    before, nothing = planned("bert", 1.0)
    assert nothing == 0.0 and before == plan("bert").executable.planned_bytes
    least = plan("bert", Recomputation(least=True)).executable.planned_bytes / before
    costs = [planned("bert", max(budget, least + 0.001))[1] for budget in (0.9, 0.7, least)]
    assert costs == sorted(costs) and costs[0] < costs[-1] < 0.5


def test_cheap_operators_are_computed_again_before_products():
    graph = rebuild(plan("bert").model)
    peak = schedule(graph.graph).profile(()).peak
    rewritten, _ = Recompute(Recomputation(), memory_of, int(0.85 * peak)).apply(graph)
    again = {node.op_type for node in rewritten.graph if any((v.name or "").endswith("_again") for v in node.outputs)}
    assert again <= {"Gelu", "LayerNormalization", "Reshape", "DropoutGrad", "Add"}
