"""Branches and loops as one call of onnxruntime: as soon as that is known to be right and faster, and never else."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import ontrain
from ontrain import ProviderError
from ontrain.inference.stepwise.control import Control
from tests.inference.stepwise.models import BRANCHES, MODELS, Model, floats

COUNTED = Model(
    """m (float[n] x, int64 count, int64 by) => (float[n] y, float[rounds, n] states) {
        yes = Constant<value = bool {1}>()
        y, states = Loop(count, yes, x) <
            body = body (int64 i, bool go, float[n] state) => (bool again, float[n] next, float[n] row) {
                half = Constant<value = float {0.5}>()
                part = Div(i, by)
                step = Cast<to = 1>(part)
                odd = Mod(i, by)
                zero = Constant<value = int64 {0}>()
                even = Equal(odd, zero)
                turned = If(even) <
                    then_branch = same () => (float[n] a) { a = Mul(state, half) },
                    else_branch = other () => (float[n] b) { b = Neg(state) }
                >
                next = Add(turned, step)
                row = Tanh(next)
                again = Identity(go)
            }
        >
    }""",
    lambda size: {"x": floats(size), "count": np.array(40), "by": np.array(2)},
)


@pytest.fixture
def rounds(monkeypatch):
    """How often branches and loops ran round by round."""
    calls = []
    run = Control._run

    def counted(self, environment):
        calls.append(self.operator)
        return run(self, environment)

    monkeypatch.setattr(Control, "_run", counted)
    return calls


def own(model: Model) -> ontrain.InferenceSession:
    return ontrain.InferenceSession(model.serialized(), providers=["TorchExecutionProvider"])


def stock(model: Model) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.serialized(), options, providers=["CPUExecutionProvider"])


def assert_all_close(actual, expected) -> None:
    for mine, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_loop_of_small_nodes_becomes_one_call(rounds):
    session, theirs = own(COUNTED), stock(COUNTED)
    for size in (3, 3, 3, 3, 2, 3):
        feeds = {**COUNTED.feeds(size), "x": floats(size, seed=len(rounds))}
        assert_all_close(session.run(None, feeds), theirs.run(None, feeds))
    assert rounds.count("Loop") == 2


@pytest.mark.parametrize("name", MODELS)
def test_results_are_the_same_in_later_runs(name):
    session, theirs = own(MODELS[name]), stock(MODELS[name])
    for _ in range(4):
        feeds = MODELS[name].feeds(5)
        for mine, others in zip(session.run(None, feeds), theirs.run(None, feeds), strict=True):
            if isinstance(others, np.ndarray) and others.dtype.kind == "f":
                np.testing.assert_allclose(mine, others, rtol=1e-5, atol=1e-6)
            elif isinstance(others, np.ndarray):
                np.testing.assert_array_equal(mine, others)


def test_a_run_that_may_be_stopped_goes_round_by_round(rounds):
    session = own(COUNTED)
    for _ in range(4):
        session.run(None, COUNTED.feeds(3), ontrain.RunOptions())
    assert rounds.count("Loop") == 4


def test_the_level_that_changes_nothing_joins_nothing(rounds):
    options = ontrain.SessionOptions()
    options.graph_optimization_level = ontrain.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ontrain.InferenceSession(COUNTED.serialized(), options, providers=["TorchExecutionProvider"])
    for _ in range(4):
        session.run(None, COUNTED.feeds(3))
    assert rounds.count("Loop") == 4


def test_what_would_end_the_process_or_never_end_is_still_told(monkeypatch, rounds):
    session = own(COUNTED)
    for _ in range(3):
        session.run(None, COUNTED.feeds(3))
    before = len(rounds)
    with pytest.raises(ProviderError, match="Div"):
        session.run(None, {**COUNTED.feeds(3), "by": np.array(0)})
    assert len(rounds) > before, "the usual way tells what is wrong"
    monkeypatch.setenv("ONTRAIN_LOOP_LIMIT", "50")
    session = own(COUNTED)
    for _ in range(3):
        session.run(None, COUNTED.feeds(3))
    with pytest.raises(ProviderError, match="more than 50 rounds"):
        session.run(None, {**COUNTED.feeds(3), "count": np.array(2**40)})


def test_chance_is_left_to_ontrain(rounds):
    model = Model(
        """m (float[n] x, int64 count) => (float[n] y, int64[1, k] places) {
            places = NonZero(x)
            yes = Constant<value = bool {1}>()
            y = Loop(count, yes, x) <
                body = body (int64 i, bool go, float[n] state) => (bool again, float[n] next) {
                    noise = RandomUniformLike(state)
                    next = Add(state, noise)
                    sum = ReduceSum<keepdims = 0>(next)
                    large = Constant<value = float {1000}>()
                    again = Less(sum, large)
                }
            >
        }""",
        lambda size: {"x": floats(size), "count": np.array(4)},
    )
    session = own(model)
    for _ in range(4):
        session.run(None, model.feeds(3))
    assert rounds.count("Loop") == 4


def test_a_branch_is_taken_anew_in_each_run():
    session, theirs = own(BRANCHES), stock(BRANCHES)
    for seed in range(8):
        feeds = {"x": floats(5, 4, seed=seed)}
        assert_all_close(session.run(None, feeds), theirs.run(None, feeds))
