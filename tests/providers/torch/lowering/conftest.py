"""Lowerings are tested node by node."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Let each small node be a call of its own; `test_small_nodes.py` lets them run in rows."""
    monkeypatch.setenv("ONTRAIN_JOIN", "0")
