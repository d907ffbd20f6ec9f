"""The published table of operators is the present one."""

from __future__ import annotations

import importlib.metadata
import re

import pytest

from tests.cli.operator_table import TARGET, table


def pinned(package: str) -> str:
    text = (TARGET.parents[1] / "constraints.txt").read_text()
    return re.search(rf"^{package}==(.+)$", text, re.MULTILINE)[1]


@pytest.mark.skipif(
    any(importlib.metadata.version(name) != pinned(name) for name in ("onnx", "onnxruntime")),
    reason="another onnx or onnxruntime has other operators and kernels",
)
def test_the_published_table_is_up_to_date():
    assert TARGET.read_text() == table(), "run make docs-operators"
