"""Budgets and clusters as users write them, and wrong values."""

from __future__ import annotations

import json

import pytest

from ontrain import OptionError
from ontrain.passes.recompute import (
    ClusterRequest,
    parse_budget,
    parse_clusters,
)
from tests.passes.recompute.switches import tiny_trainer


@pytest.mark.parametrize(
    ("budget", "meant"),
    [
        (1000, 1000), (0.5, 0.5), ("0.5", 0.5), ("1.0", 1.0), ("1000", 1000), ("2GiB", 2 << 30), ("1.5 kib", 1536),
        ("500 MB", 500_000_000), (".25", 0.25), ("2 gb", 2_000_000_000),
    ],
)  # fmt: skip
def test_a_budget_is_bytes_or_a_fraction(budget, meant):
    parsed = parse_budget(budget)
    assert parsed == meant and type(parsed) is type(meant)


@pytest.mark.parametrize(
    "budget", [0, -1, 0.0, 1.5, "1.5", "", "GiB", "half", "2 GiBs", True, float("nan"), "-1", None]
)
def test_another_budget_is_told_what_is_allowed(budget):
    with pytest.raises(OptionError, match=r"memory_budget is .*\n.*allowed: bytes"):
        parse_budget(budget)
    if budget is not None:
        with pytest.raises(OptionError, match="graph_transformer.memory_budget"):
            tiny_trainer(memory_budget=budget)


def test_clusters_are_read_from_a_text_or_a_file(tmp_path):
    meant = (ClusterRequest("Gelu+", True, -1), ClusterRequest("Cast+", False, 3))
    assert parse_clusters("Gelu+:1:-1, Cast+:0:3", "X") == meant
    path = tmp_path / "memory.json"
    path.write_text(json.dumps(["Gelu+:1:-1", "Cast+:0:3"]))
    assert parse_clusters(str(path), "X") == meant
    assert parse_clusters("", "X") == ()


@pytest.mark.parametrize("text", ["Gelu+", "Gelu+:1", "Gelu+:3:1", "Gelu+:1:-2", ":1:1", "Gelu+:1:x", "missing.json"])
def test_another_text_is_told_how_to_write_it(text):
    with pytest.raises(OptionError, match="^X ") as error:
        parse_clusters(text, "X")
    assert error.value.way_out


def test_a_file_that_holds_something_else_is_refused(tmp_path):
    path = tmp_path / "memory.json"
    for content in ("{}", "[1]", "nothing"):
        path.write_text(content)
        with pytest.raises(OptionError):
            parse_clusters(str(path), "X")
