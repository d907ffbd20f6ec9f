"""The command `ontrain plan` in a real process."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.test_command import run

MODELS = """
import torch
from torch import nn


def factory():
    layers = [part for _ in range(4) for part in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
    return nn.Sequential(*layers, nn.Linear(64, 3)), (torch.randn(4, 64),)
"""


def test_it_prints_batch_sizes_against_memory_and_json(tmp_path):
    (tmp_path / "models.py").write_text(MODELS)
    asked = ("plan", "models:factory", "--batch-sizes", "8,32", "--loss", "SoftmaxCrossEntropy")
    code, out, err = run(*asked, "--memory-budget", "0.8", "--memory-budget", "1KiB", "--clusters", cwd=tmp_path)
    assert code == 0, err
    rows = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines() if re.match(r"\s*\d+\s", line)]
    assert [row[:2] for row in rows[:6]] == [[n, b] for n in ("8", "32") for b in ("–", "0.8", "1KiB")]
    assert "batch 32: memory_budget 1.0 KiB cannot be reached" in out and re.search(r"Gelu\+", out)
    code, out, _ = run(*asked, "--json", cwd=tmp_path)
    report = json.loads(out)
    assert code == 0 and report["schema"] == 1 and [row["batch_size"] for row in report["rows"]] == [8, 32]
    assert report["rows"][1]["peak"] > report["rows"][0]["peak"] > 0


@pytest.mark.parametrize("sizes", ["1,x", "0,2", "-1", "1,,2", ""])
def test_wrong_usage_is_one_readable_error(sizes, tmp_path):
    (tmp_path / "models.py").write_text(MODELS)
    code, _, err = run("plan", "models:factory", f"--batch-sizes={sizes}", cwd=tmp_path)
    assert code == 2 and f"--batch-sizes '{sizes}'" in err
