"""Processes find what others, or the same ones in another test, have captured."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _captured_once(captured_once: None) -> None:
    """In every module here."""
