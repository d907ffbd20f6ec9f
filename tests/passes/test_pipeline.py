"""A user's pass among ours: it runs where it was put, once, and goes again."""

from __future__ import annotations

import pytest

from ontrain import OptionError
from ontrain.passes import FORWARD_PASSES, STEP_PASSES, pipeline, register_pass, unregister_pass
from tests.passes.planned import TanhByExponentials, eager_loss, loss


@pytest.fixture
def registered():
    done = []

    def register(graph_pass, *, stage, after=None):
        register_pass(graph_pass, stage=stage, after=after)
        done.append((graph_pass.name, stage))

    yield register
    for name, stage in done:
        unregister_pass(name, stage=stage)


def names(stage):
    return [graph_pass.name for graph_pass in pipeline(stage)]


def test_without_registration_the_lists_are_the_built_in_ones():
    assert pipeline("forward") == FORWARD_PASSES and pipeline("step") == STEP_PASSES


def test_a_pass_runs_last_or_behind_the_one_named(registered):
    registered(TanhByExponentials(), stage="step")
    registered(TanhByExponentials(), stage="forward", after="Simplify")
    assert names("step")[-1] == "TanhByExponentials"
    assert names("forward")[names("forward").index("Simplify") + 1] == "TanhByExponentials"


def test_a_registered_pass_changes_the_plan_and_goes_again(registered):
    assert loss() == pytest.approx(eager_loss(), rel=1e-6)
    registered(TanhByExponentials(), stage="forward")
    assert abs(loss() - eager_loss()) > 1e-3
    assert loss(graph_transformer={"disabled_passes": ["TanhByExponentials"]}) == pytest.approx(eager_loss(), rel=1e-6)


def test_a_name_is_taken_once(registered):
    registered(TanhByExponentials(), stage="forward")
    with pytest.raises(OptionError, match="already"):
        register_pass(TanhByExponentials(), stage="forward")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: register_pass(TanhByExponentials(), stage="backward"), "no stage 'backward'"),
        (lambda: register_pass(TanhByExponentials(), stage="step", after="LinearToGemm"), "no pass 'LinearToGemm'"),
        (lambda: unregister_pass("Simplfy", stage="step"), "(?s)'Simplfy'.*'Simplify'"),
    ],
)
def test_what_there_is_not_is_refused_and_nothing_changes(call, said):
    with pytest.raises(OptionError, match=said):
        call()
    assert pipeline("forward") == FORWARD_PASSES and pipeline("step") == STEP_PASSES
