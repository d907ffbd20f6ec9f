"""onnx's own backend suite on the torch provider: what is to pass passes, and the table of the rest is honest."""

from __future__ import annotations

import pytest

from tests.conformance.cases import cases
from tests.conformance.table import BY_CHANCE, is_chance, not_passing
from tests.conformance.verdict import verdict

PARTS = 12


@pytest.mark.parametrize("part", range(PARTS))
def test_the_cases_of_onnx_pass(part: int) -> None:
    chosen = list(cases().values())[part::PARTS]
    reasons = {case.name: verdict(case, ["TorchExecutionProvider"]) for case in chosen}
    table = not_passing()
    failed = [f"{name}: {reason}" for name, reason in reasons.items() if reason is not None and name not in table]
    assert not failed, "\n".join(failed)
    passed = [name for name, reason in reasons.items() if reason is None and not is_chance(table.get(name, BY_CHANCE))]
    assert not passed, f"these pass now; run python -m tests.conformance --prune: {passed}"


def test_the_table_names_cases_of_the_suite_and_reasons() -> None:
    assert not_passing().keys() <= cases().keys()
    assert all(not_passing().values())
