"""Errors name the line that they come from, and the user's own that called a package for it."""

import sys

import pytest
import torch
from torch import nn

from ontrain.capture import capture
from ontrain.errors import CaptureError

LIBRARY = """
def doubled(x):
    if x.sum() > 0:
        return x * 2
    return x
"""


@pytest.fixture(params=["site-packages", "dist-packages", "target"])
def library(request, tmp_path, monkeypatch):
    folder = tmp_path / request.param
    (folder / "torchlike_numbers-1.0.dist-info").mkdir(parents=True)
    (folder / "torchlike_numbers-1.0.dist-info" / "RECORD").write_text("torchlike_numbers.py,,\n")
    (folder / "torchlike_numbers.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(folder))
    yield __import__("torchlike_numbers")
    del sys.modules["torchlike_numbers"]


def test_a_line_in_a_package_comes_with_the_users_own(library):
    class Calls(nn.Module):
        def forward(self, x):
            return library.doubled(x)

    with pytest.raises(CaptureError) as refusal:
        capture(Calls(), (torch.randn(3, 3),))
    source = refusal.value.source
    assert source.startswith("torchlike_numbers.py:") and "if x.sum() > 0" in source
    assert "(called at test_source.py:" in source and "return library.doubled(x))" in source


def test_only_names_that_are_near_in_meaning_are_suggested():
    class Factors(nn.Module):
        def forward(self, x):
            return torch.linalg.ldl_factor(x).LD

    with pytest.raises(CaptureError, match="linalg_ldl_factor") as refusal:
        capture(Factors(), (torch.randn(3, 3),))
    text = refusal.value.way_out
    assert "logical_" not in text and "'linalg_lu_factor" in text
    assert "fallback=" in text and 'backend="ontrain"' in text
