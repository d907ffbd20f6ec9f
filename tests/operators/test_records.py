"""Every operator has one record, and every record is of an operator."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from ontrain.functions import adopted, composites, expansions
from ontrain.inference.stepwise.search import SEARCHES
from ontrain.operators import DOMAIN, OPERATORS, define, record_of
from ontrain.operators.gradients import rules
from ontrain.providers.torch.lowering.registry import _table as lowerings

STANDARD = {(s.domain, s.name) for s in onnx.defs.get_all_schemas() if s.domain in ("", "ai.onnx.ml")}
OURS = {(DOMAIN, name) for name in composites}


def test_every_operator_of_the_standard_and_of_ours_has_a_record():
    assert set(OPERATORS) == STANDARD | OURS | set(adopted) | {("com.microsoft", name) for name in SEARCHES}


def test_nothing_is_known_elsewhere_of_an_operator_without_a_record():
    assert {*rules, *expansions, *lowerings} <= set(OPERATORS)


@pytest.mark.parametrize("record", OPERATORS.values(), ids=lambda record: record.name)
def test_positions_of_inputs_are_of_inputs_that_there_are(record):
    if record.schema is None:
        return
    assert all(i < record.schema.max_input for i in (*record.settings, *record.weightless))
    assert not set(record.settings) & set(record.weightless)


def test_an_operator_has_one_record():
    with pytest.raises(AssertionError, match="Gelu has two records"):
        define("Gelu")


def test_of_an_operator_without_a_page_nothing_is_claimed():
    record = record_of(ir.Node("somebodys", "Softmax", []))
    assert record == record_of(ir.Node("", "Nonesuch", []))
    assert not record.overwrites and not record.elementwise and not record.settings
