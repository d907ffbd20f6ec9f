"""Lowerings are tested node by node."""

from __future__ import annotations

import pytest

from ontrain.providers.torch.lowering import small_nodes


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Let each small node be a call of its own; tests of rows take the fixture `joined`."""
    monkeypatch.setenv("ONTRAIN_JOIN", "0")


@pytest.fixture
def joined(apart: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small nodes run in rows, whose bounds are the same on one thread."""
    monkeypatch.setenv("ONTRAIN_JOIN", "1")
    monkeypatch.setattr(small_nodes, "ALONE", small_nodes.BESIDE)
