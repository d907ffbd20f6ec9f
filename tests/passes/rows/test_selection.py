"""Rows are selected where that saves something, and where nobody forbids it."""

from __future__ import annotations

import pytest

from ontrain.graph import Builder, new_model
from ontrain.passes.rows.selection import batch_only
from tests.passes.rows.encoders import BATCH, LENGTH, Tagger
from tests.passes.rows.savings import NAMES, ROWS, batch, notes, plan_of
from tests.providers.graphs import float_input


def test_where_nothing_is_gained_the_graph_is_untouched():
    feeds = batch(list(range(ROWS)), [LENGTH] * BATCH)
    plan, _ = plan_of(Tagger(), feeds)
    without, _ = plan_of(Tagger(), feeds, graph_transformer={"disabled_passes": NAMES})
    operators = [[node.op_type for node in candidate.model.graph] for candidate in (plan, without)]
    assert operators[0] == operators[1] and "PackRows" not in operators[0]


@pytest.mark.parametrize("name", NAMES[::2])
def test_each_pass_can_be_left_out_by_name(name, monkeypatch):
    monkeypatch.setenv("ONTRAIN_DISABLE_PASSES", name)
    plan, _ = plan_of(Tagger(), batch([1, 7], [6, 3, 2]))
    assert name not in {report.name for report in plan.passes}
    assert {NAMES[0], NAMES[2]} - {name} == set(notes(plan))


def test_what_chance_decides_is_not_the_batchs_alone():
    """A mask that is drawn differs from step to step: rows counted by it beforehand would not be those of the step."""
    x = float_input("x", (4,))
    model = new_model([x], "masks")
    op = Builder(model.graph)
    assert batch_only(model.graph, [op.Greater(x, 0.5)]) == [x]
    assert batch_only(model.graph, [op.Greater(op.Bernoulli(x), 0.5)]) is None
