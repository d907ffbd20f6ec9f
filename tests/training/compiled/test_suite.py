"""The criterion of the suite, and how its models are made small."""

from __future__ import annotations

import json
from collections import Counter

import torch
from torch import nn

from tests.page import renew
from tests.training.compiled.suite import MODELS
from tests.training.compiled.suite.__main__ import PAGE, TABLE, _line
from tests.training.compiled.suite.judge import rate
from tests.training.compiled.suite.pictures import without_repetition


def test_an_error_of_eagers_size_is_right_and_a_larger_one_is_named():
    exact = {"loss": torch.ones(4, dtype=torch.float64), "grad weight": torch.ones(4, dtype=torch.float64)}
    eager = {name: value + 1e-3 for name, value in exact.items()}
    assert rate(eager, eager, exact)[0] < 1
    error, name = rate(eager | {"grad weight": exact["grad weight"] + 4e-3}, eager, exact)
    assert error > 1
    assert name == "grad weight"


def test_a_gradient_that_is_missing_or_not_finite_is_wrong():
    exact = {"loss": torch.ones(1), "grad weight": torch.ones(1)}
    assert rate({"loss": torch.ones(1)}, exact, exact) == (float("inf"), "grad weight")
    assert rate(exact | {"loss": torch.tensor([float("nan")])}, exact, exact) == (float("inf"), "loss")


def test_what_is_zero_but_for_rounding_may_differ_by_rounding():
    exact = {"loss": torch.ones(1), "0.running_mean": torch.ones(4), "1.running_mean": torch.zeros(4)}
    assert rate(exact | {"1.running_mean": torch.full((4,), 4e-7)}, exact, exact)[0] < 1
    assert rate(exact | {"1.running_mean": torch.full((4,), 4e-6)}, exact, exact)[0] > 1


def test_repeated_blocks_are_cut_but_where_they_make_images_smaller():
    net = nn.Sequential(
        nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 3, 2), nn.Conv2d(3, 3, 3, 2)
    )  # fmt: skip
    assert [name for name, _ in without_repetition(net).named_children()] == ["0", "2", "3", "4"]


def test_the_suite_has_the_names_of_pytorchs_lists():
    assert Counter(model.suite for model in MODELS.values()) == {"huggingface": 28, "timm": 54}


def test_the_page_has_the_tables_rows():
    page = PAGE.read_text()
    assert [name for name, row in json.loads(TABLE.read_text()).items() if _line(name, row) not in page] == []


def test_a_part_of_a_page_is_renewed_and_the_others_stay(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n## One\n\nold\n\n## Two\n\nkept\n")
    renew(page, "## One", "## One\n\nnew\n")
    renew(page, "## Three", "## Three\n\nadded\n")
    assert page.read_text() == "# Page\n\n## One\n\nnew\n\n## Two\n\nkept\n\n## Three\n\nadded\n"
