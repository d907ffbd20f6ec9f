"""What tests of several recipes share: a folder of captured graphs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs of one model share their captured graphs."""
    return tmp_path_factory.mktemp("captures")


@pytest.fixture(scope="module")
def captured_once(captures: Path) -> Iterator[None]:
    """Let a module's runs share them. Not for a whole session: other recipes' tests would see the variable, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONTRAIN_CACHE_DIR", str(captures))
        yield
