"""The planner: one plan for a structure and its sizes, whoever asks for it, and with which numbers of rows."""

import threading

import pytest
import torch

from ontrain.errors import InputError
from ontrain.graph import static_dims
from ontrain.optim import StepKind
from tests.session.test_training import ROWS, WIDTH, batch, make_session
from tests.threads import at_once

LOSSES = ("SoftmaxCrossEntropyLoss", "LinearCrossEntropy")


def test_threads_that_want_one_plan_get_the_same():
    session, planned, start = make_session(), [], threading.Barrier(4)

    def ask():
        start.wait()
        planned.append(session.plan(StepKind.UPDATE, batch(0)))

    at_once(*[ask] * 4)
    assert len(planned) == 4 and len(set(map(id, planned))) == 1


@pytest.mark.usefixtures("switching_often", "rows_counted")
def test_threads_that_count_other_rows_get_plans_of_their_own(seed):
    """What is counted for one plan is not seen by another in the making."""
    session = make_session()
    counts = (1, 2, 3, ROWS)
    plans = {}

    def ask(labelled):
        for _ in range(3):
            plans[labelled] = session.plan(StepKind.UPDATE, batch(seed, labelled))

    at_once(*(lambda labelled=labelled: ask(labelled) for labelled in counts))
    for labelled, plan in plans.items():
        (rows,) = {static_dims(node.inputs[1])[0] for node in plan.model.graph if node.op_type in LOSSES}
        assert rows == labelled
    assert len(session.plans) == len(counts)


def test_a_plan_that_is_refused_is_not_kept():
    session = make_session()
    with pytest.raises(InputError):
        session.plan(
            StepKind.UPDATE, {"x": torch.randn(ROWS, WIDTH + 1), "label": torch.zeros(ROWS, dtype=torch.int64)}
        )
    assert not session.plans


def test_plans_are_forgotten_by_structure():
    session = make_session(steps=2)
    accumulate = session.plan(StepKind.ACCUMULATE, batch(0))
    session.plan(StepKind.ACCUMULATE_UPDATE, batch(0))
    session.eval_model = session.model
    evaluation = session.plan(None, batch(0))
    session.set_optimizer(session.optimizer)
    assert list(session.plans.values()) == [evaluation]
    assert session.plan(StepKind.ACCUMULATE, batch(0)) is not accumulate
