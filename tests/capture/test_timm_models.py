"""The table of timm's models, and in which order they are tried."""

from __future__ import annotations

import itertools
import json

import pytest

from tests.capture.timm_models import PAGE, TABLE, in_turn


def test_the_page_names_each_model_that_is_not_right():
    page = PAGE.read_text()
    others = {name: row for name, row in json.loads(TABLE.read_text()).items() if row["result"] != "right"}
    assert [name for name, row in others.items() if row["result"] != "not made" and f"| {name} |" not in page] == []


def test_each_of_timms_files_has_its_turn_before_any_has_a_second():
    timm = pytest.importorskip("timm", reason="timm is not installed")
    files = timm.list_modules()
    first = [timm.model_entrypoint(name).__module__ for name in itertools.islice(in_turn(), len(files) // 2)]
    assert len(set(first)) == len(first)
