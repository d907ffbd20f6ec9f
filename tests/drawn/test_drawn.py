"""A slice of the drawn cases that is always the same, and what the judges notice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ontrain
from ontrain.training import optim
from tests.drawn.__main__ import main
from tests.drawn.calls import call as calls
from tests.drawn.draw import Draw
from tests.drawn.judge import (
    OracleFails,
    Tolerance,
    WrongResult,
    compare,
    compare_buffers,
    compare_gradients,
    judge,
    oracle,
)  # fmt: skip
from tests.drawn.kinds import KINDS, draw_and_judge
from tests.drawn.runs import run, table

EXACT = Tolerance(1e-9, 1e-9)
SLICES = {"calls": range(12), "networks": range(5), "modules": range(4), "precisions": range(4), "trainers": range(3),
          "nodes": range(24), "graphs": range(5), "gradients": range(3)}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what is captured anew for each shape says so
@pytest.mark.parametrize("kind", KINDS)
def test_drawn_cases_are_right(kind):
    outcomes = [draw_and_judge(kind, 1, number) for number in SLICES[kind]]
    assert not [outcome for outcome in outcomes if outcome.bad], "\n".join(outcome.line() for outcome in outcomes)
    # Neither is everything without an oracle.
    assert sum(outcome.verdict == "right" for outcome in outcomes) >= len(outcomes) * 2 // 3, table(outcomes)


@pytest.mark.parametrize("kind", KINDS)
def test_each_family_says_what_it_draws(kind):
    families, _ = KINDS[kind].loaded()
    assert len(set(families)) >= 20 and set(families.turns) == set(families)
    assert all(families[name].__doc__ for name in families)


def test_a_case_is_drawn_again_by_seed_family_and_number():
    def drawn(*case):
        draw = Draw(*case)
        return draw.integer(0, 10**9), draw.tensor(3).tolist(), draw.array(3).tolist()

    assert drawn(1, "pool", 7) == drawn(1, "pool", 7)
    cases = [(1, "pool", 7), (2, "pool", 7), (1, "fold", 7), (1, "pool", 8)]
    assert len({str(drawn(*case)) for case in cases}) == len(cases)


def test_what_others_draw_and_start_with_stays():
    before, state = torch.get_default_dtype(), torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), Draw(1, "pool", 7).alone():
        assert nn.Linear(2, 2).weight.dtype == torch.float64
        raise ZeroDivisionError
    assert torch.get_default_dtype() == before and torch.equal(torch.get_rng_state(), state)


class Changed(nn.Module):
    """What ORTModule would be if it made a mistake."""

    def __init__(self, module: nn.Module, mistake: str) -> None:
        super().__init__()
        self.module, self.mistake = module, mistake

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        value = self.module(*inputs)
        if self.mistake == "value":
            return value + 1e-6
        if self.mistake == "shape":
            return value[None]
        if self.mistake == "gradient":
            return value + 1e-3 * (value - value.detach())
        if self.mistake == "missing gradient":
            return value.detach() + inputs[0].sum() - inputs[0].detach().sum()
        if self.mistake == "buffer":
            next(self.module.buffers()).data.add_(1e-3)
        if self.mistake == "error":
            raise ValueError("no such operator")
        return value


@pytest.mark.parametrize(
    ("mistake", "verdict", "text"),
    [
        ("value", "wrong", "value is off by up to 1e-06"), ("shape", "wrong", "value has shape"),
        ("gradient", "wrong", "is off by up to"),
        ("missing gradient", "wrong", "gradient of parameter 0 is missing"),
        ("buffer", "wrong", "buffer module.running"),
        ("error", "refused", "ValueError: no such operator"), ("none", "right", ""),
    ],
)  # fmt: skip
def test_a_mistake_is_noticed_and_can_be_drawn_again(monkeypatch, mistake, verdict, text):
    monkeypatch.setattr(calls, "ORTModule", lambda module: Changed(module, mistake))
    # The first layer that has running statistics.
    outcome = next(
        outcome for outcome in (draw_and_judge("calls", 1, number, ["batch_norm"]) for number in range(20))
        if "track_running_stats=True" in outcome.text or verdict == "right"
    )  # fmt: skip
    assert outcome.verdict == verdict and text in outcome.text and outcome.bad == (verdict != "right")
    again = f"python -m tests.drawn --kind calls --family batch_norm --seed 1 --from {outcome.number} --count 1"
    assert again in outcome.line()


class Off(ontrain.InferenceSession):
    """What a session would be if it made a mistake."""

    def run(self, *arguments: Any) -> list[np.ndarray]:
        return [output + 0.1 for output in super().run(*arguments)]


@pytest.mark.parametrize(("kind", "family"), [("nodes", "matmul"), ("graphs", "convolution")])
def test_a_wrong_output_of_a_file_is_noticed(monkeypatch, kind, family):
    assert draw_and_judge(kind, 1, 0, [family]).verdict == "right"
    monkeypatch.setattr(ontrain, "InferenceSession", Off)
    outcome = draw_and_judge(kind, 1, 0, [family])
    assert outcome.verdict == "wrong" and "is off by up to 0.1" in outcome.text


@pytest.mark.parametrize(("kind", "text"), [("gradients", "the slope is"), ("trainers", "is off by up to")])
def test_an_update_at_another_rate_is_noticed(monkeypatch, kind, text):
    for name in ("SGDConfig", "AdamConfig", "LambConfig"):
        config = getattr(optim, name)
        # AdamConfig's modes of decay are its own.
        twice = type(name, (config,), {"__init__": lambda self, *, lr, c=config, **o: c.__init__(self, lr=2 * lr, **o)})
        monkeypatch.setattr(optim, name, twice)
    outcome = draw_and_judge(kind, 1, 0)
    assert outcome.verdict == "wrong" and text in outcome.text


def test_gradients_are_compared_by_name_and_presence():
    here, zero = {"w": torch.ones(2)}, {"w": torch.zeros(2)}
    for expected, actual in ((here, {"w": None}), ({"w": None}, here), (here, {}), (zero, {"w": None})):
        with pytest.raises(WrongResult):
            compare_gradients(expected, actual, EXACT)
    # Zero and nothing are the same where the judge says so; nothing and one are not.
    compare_gradients(zero, {"w": None}, EXACT, absent_is_zero=True)
    with pytest.raises(WrongResult, match="off by up to 1"):
        compare_gradients(here, {"w": None}, EXACT, absent_is_zero=True)


def test_buffers_and_types_are_compared():
    first, second = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    compare_buffers(first, second, EXACT)
    second.running_var += 1e-3
    with pytest.raises(WrongResult, match="running_var"):
        compare_buffers(first, second, EXACT)
    with pytest.raises(WrongResult, match="type"):
        compare("value", torch.ones(2), torch.ones(2, dtype=torch.int64), EXACT)
    compare("value", torch.tensor(float("nan")), torch.tensor(float("nan")), EXACT)


def test_an_oracle_that_fails_says_nothing_of_us():
    def case(drawn):
        with oracle():
            raise RuntimeError("eager cannot")

    outcome = judge("calls", "pool", 1, 0, case)
    assert outcome.verdict == "eager fails" and not outcome.bad and "eager cannot" in outcome.text
    with pytest.raises(OracleFails), oracle():
        raise ValueError


def test_a_known_difference_has_a_reason_and_is_not_bad():
    def case(drawn):
        drawn.append("Resize tf_crop_and_resize")
        raise WrongResult("output 0 is off")

    outcome = judge("nodes", "resize", 1, 0, case)
    assert outcome.verdict == "wrong" and outcome.known and not outcome.bad and outcome.known in outcome.line()
    assert judge("nodes", "pad", 1, 0, case).bad


def test_the_command_ends_with_1_where_something_is_wrong(monkeypatch, capsys):
    arguments = ["--kind", "calls", "--family", "huber", "--count", "1"]
    assert main(arguments) == 0
    monkeypatch.setattr(calls, "ORTModule", lambda module: Changed(module, "value"))
    assert main(arguments) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].split() == ["all", "1", "0", "0", "0", "1", "0"]
    with pytest.raises(SystemExit, match="no family"):
        main(["--kind", "calls", "--family", "nothing"])


@pytest.mark.thorough
@pytest.mark.slow
def test_several_processes_judge_as_a_single_one_does():
    assert list(run("nodes", 1, range(6), workers=2)) == list(run("nodes", 1, range(6)))
