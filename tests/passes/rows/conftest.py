"""Fixtures of the tests of rows."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _count_always(rows_counted: None) -> None:
    """The models of these tests are small."""
