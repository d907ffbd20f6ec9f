"""An ORTModule with a memory budget: the same gradients from less memory."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from typing import Any
from unittest import mock

import pytest
import torch

from ontrain import OptionError
from ontrain.session import make_plan
from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import LanguageModel, gradients

pytestmark = pytest.mark.usefixtures("captured_once")

VIEWS = ("Reshape", "Transpose", "Split")
IDS = torch.arange(60).reshape(3, 20) % 17


class Dropping(LanguageModel):
    """With dropout behind each block."""

    def forward(self, ids, labels=None):
        x = self.embed(ids)
        for block in self.blocks:
            x = torch.nn.functional.dropout(block(x), 0.3)
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def run(model: torch.nn.Module, **options: Any) -> tuple[list[torch.Tensor], int, Counter[str], Any]:
    """Losses and gradients of two steps, the plan's bytes, and the operators that run a second time."""
    torch.manual_seed(4)
    wrapped = ORTModule(copy.deepcopy(model), **options)
    tensors, plans = [], []

    def noted(*args: Any, **kwargs: Any) -> Any:
        plans.append(make_plan(*args, **kwargs))
        return plans[-1]

    with mock.patch("ontrain.session.planner.make_plan", noted):
        for _ in range(2):
            loss = wrapped(IDS, IDS)
            loss.backward()
            tensors += [loss.detach(), *(g for g in gradients(wrapped).values() if g is not None)]
    (plan,) = plans
    again = Counter(n.op_type for n in plan.model.graph if (n.name or "").endswith("_again") and n.op_type not in VIEWS)
    return tensors, plan.executable.planned_bytes, again, wrapped


def assert_same(tensors: list[torch.Tensor], others: list[torch.Tensor]) -> None:
    assert len(tensors) == len(others) > 10 and all(torch.equal(a, b) for a, b in zip(tensors, others, strict=True))


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(2)
    return Dropping(layers=3)


@pytest.fixture(scope="module")
def baseline(model):
    return run(model)


def test_a_budget_gives_the_same_gradients_to_the_bit(model, baseline):
    tensors, nbytes, again, wrapped = run(model, memory_budget=0.7)
    assert_same(baseline[0], tensors)
    assert nbytes <= 0.7 * baseline[1] and again and not baseline[2]
    # A copy keeps to it as well.
    assert copy.deepcopy(wrapped).__dict__["_memory_budget"] == 0.7


def test_the_environment_sets_a_budget(model, baseline, monkeypatch):
    monkeypatch.setenv("ONTRAIN_MEMORY_BUDGET", str(int(0.8 * baseline[1])))
    tensors, nbytes, _, _ = run(model)
    assert_same(baseline[0], tensors)
    assert nbytes <= 0.8 * baseline[1]


@pytest.mark.parametrize(("level", "layers"), [("0", 0), ("1", 3), ("2", 0)])
def test_onnxruntimes_levels_drive_the_pass(model, baseline, monkeypatch, level, layers):
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
    tensors, nbytes, again, _ = run(model)
    assert_same(baseline[0], tensors)
    assert bool(again) == (level != "0") and (nbytes < baseline[1]) == (level != "0")
    if layers:
        assert again["Attention"] == layers


def test_onnxruntimes_config_names_clusters_of_a_table_that_is_said(model, baseline, monkeypatch, caplog):
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", "Gelu+:1:2")
    with caplog.at_level(logging.INFO, "ontrain.phases"):
        tensors, _, again, _ = run(model)
    assert_same(baseline[0], tensors)
    assert again == {"Gelu": 2}
    (row,) = [line for line in caplog.text.splitlines() if line.endswith("  Gelu+")]
    assert row.split()[:3] == ["3", "×", f"{60 * 64 * 4:,}"]  # three layers, 60 tokens, four times their width


def test_two_forwards_before_their_backwards_each_keep_their_own(model):
    def both(**options: Any) -> list[torch.Tensor]:
        torch.manual_seed(4)
        wrapped = ORTModule(copy.deepcopy(model), **options)
        first, second = wrapped(IDS, IDS), wrapped(IDS.flip(0), IDS)
        second.backward()
        first.backward()
        return [first.detach(), second.detach(), *(g for g in gradients(wrapped).values() if g is not None)]

    assert_same(both(), both(memory_budget=0.75))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ONTRAIN_MEMORY_BUDGET", "much"), ("ORTMODULE_MEMORY_OPT_LEVEL", "3"), ("ORTMODULE_MEMORY_OPT_CONFIG", "Gelu"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_what_is_allowed_before_the_first_call(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match=name) as error:
        ORTModule(torch.nn.Linear(2, 2))
    assert error.value.way_out


def test_a_budget_that_cannot_be_kept_to_is_refused_at_the_call(model):
    with pytest.raises(OptionError, match=r"budget 100 B cannot be reached: this batch needs [\d.]+ [KM]iB"):
        run(model, memory_budget=100)
