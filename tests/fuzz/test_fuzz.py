"""A slice of the fuzz that is always the same: no file of it ends otherwise than in a named error or a right result."""

from __future__ import annotations

import pytest

from tests.fuzz.pool import fuzz, table
from tests.fuzz.ways import WAYS

CASES = 150


@pytest.mark.slow
def test_damaged_files_end_in_a_named_error_or_a_right_result():
    outcomes = fuzz(seed=1, numbers=range(CASES), workers=2, ways=None, keep=None)
    assert len(outcomes) == CASES
    assert not [outcome for outcome in outcomes if outcome.bad], table(outcomes)
    assert {outcome.way for outcome in outcomes} == set(WAYS)
    # Neither is everything refused, nor is it only unread bytes that were damaged.
    assert sum(outcome.kind == "refused" for outcome in outcomes) > CASES // 4, table(outcomes)
    assert sum(outcome.kind == "right" for outcome in outcomes) > CASES // 10, table(outcomes)
