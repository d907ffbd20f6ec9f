"""A slice of the fuzz that is always the same: no file of it ends otherwise than in a named error or a right result."""

from __future__ import annotations

import pytest

from tests.fuzz.pool import fuzz, table
from tests.fuzz.ways import WAYS

CASES = 150


@pytest.mark.slow
def test_damaged_files_end_in_a_named_error_or_a_right_result():
    found = fuzz(seed=1, numbers=range(CASES), workers=2, ways=None, keep=None)
    assert len(found) == CASES
    assert not [one for one in found if one.bad], table(found)
    assert {one.way for one in found} == set(WAYS)
    # Neither is everything refused, nor is it only unread bytes that were damaged.
    assert sum(one.kind == "refused" for one in found) > CASES // 4, table(found)
    assert sum(one.kind == "right" for one in found) > CASES // 10, table(found)
