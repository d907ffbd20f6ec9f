"""The table of transformers' own tests of training."""

from __future__ import annotations

import json

import pytest

from tests.models.training_tests import PAGE, TABLE, TESTS, TYPES, common


def test_the_page_has_the_tables_rows():
    page = PAGE.read_text()
    rows = json.loads(TABLE.read_text())
    assert {(kind, test) for kind, tests in rows.items() for test in tests} == {(k, t) for k in TYPES for t in TESTS}
    for kind, tests in rows.items():
        for test, row in tests.items():
            assert f"| {kind} | {test} | {row['result']} |" in page


def test_what_is_no_source_distribution_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="give the unpacked source distribution"):
        common(tmp_path)
