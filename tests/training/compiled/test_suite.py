"""The criterion of the suite, and how its models are made small."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from torch import nn

from tests.page import renew
from tests.training.compiled.suite import MODELS
from tests.training.compiled.suite.__main__ import PAGE, TABLE, _line
from tests.training.compiled.suite.entry import SuiteModel
from tests.training.compiled.suite.judge import accepts, judge, rate, rate_in_double
from tests.training.compiled.suite.pictures import images, without_repetition


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


def test_pytorchs_criterion_takes_what_is_near_eager_or_as_exact_as_eager():
    exact = {"loss": torch.ones(4, dtype=torch.float64)}
    eager = {"loss": torch.ones(4) + 0.1}
    assert accepts({"loss": eager["loss"] + 1e-2}, eager, exact)
    assert accepts({"loss": torch.ones(4)}, eager, exact)
    assert not accepts({"loss": torch.ones(4) - 0.5}, eager, exact)
    assert not accepts({}, eager, exact)


def test_what_is_zero_but_for_rounding_may_differ_by_rounding():
    exact = {"loss": torch.ones(1), "0.running_mean": torch.ones(4), "1.running_mean": torch.zeros(4)}
    assert rate(exact | {"1.running_mean": torch.full((4,), 4e-7)}, exact, exact)[0] < 1
    assert rate(exact | {"1.running_mean": torch.full((4,), 4e-6)}, exact, exact)[0] > 1


def test_double_precision_tells_a_wrong_gradient_from_rounding():
    eager = {"grad a": torch.ones(4, dtype=torch.float64), "grad zero": torch.full((4,), 1e-17, dtype=torch.float64)}
    assert rate_in_double(eager | {"grad zero": torch.zeros(4, dtype=torch.float64)}, eager)[0] < 1e-9
    assert rate_in_double(eager | {"grad a": eager["grad a"] + 1e-3}, eager) == (pytest.approx(1e-3), "grad a")
    assert rate_in_double({}, eager) == (float("inf"), "grad a")


class Scaled(nn.Module):
    """Three numbers of each image by a weight each."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.weight * x.flatten(1)[:, :3]


@pytest.mark.parametrize(("backend", "result", "draws"), [("eager", "right", 1), ("doubling", "wrong", 1)])
def test_a_model_that_is_wrong_in_double_precision_is_not_drawn_again(backend, result, draws):
    def doubling(graph_module, example_inputs):
        return lambda *arguments: [2 * value for value in graph_module(*arguments)]

    model = SuiteModel("scaled", "timm", Scaled, images(8, classes=3))
    verdict = judge(model, doubling if backend == "doubling" else backend)
    assert (verdict.result, verdict.draws) == (result, draws)
    assert verdict.accepted is (result == "right")


@pytest.mark.parametrize("off", [1, 3])
def test_a_model_that_only_single_precision_finds_wrong_is_drawn_again(off):
    draws = iter(range(off * 3))

    def backend(graph_module, example_inputs):
        def call(*arguments):
            double = arguments[0].dtype is torch.float64
            scale = 1 if double or next(draws, None) is None else 2
            return [scale * value for value in graph_module(*arguments)]

        return call

    verdict = judge(SuiteModel("scaled", "timm", Scaled, images(8, classes=3)), backend)
    assert (verdict.result, verdict.draws) == (("right", 2) if off == 1 else ("wrong", 3))


def test_repeated_blocks_are_cut_but_where_they_makeimages_smaller():
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
