"""A run at sizes that were seen before asks little of Python, and checks all the same what is fed."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from onnx import helper

import ontrain
from ontrain.errors import InputError
from tests.providers.torch.lowering.files import file_of

X = {"x": np.ones((2, 3), np.float32)}


@pytest.fixture
def session():
    model = file_of([helper.make_node("Neg", ["x"], ["y"])], X, {}, ["y"])
    return ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])


def _calls(run) -> int:
    """How many functions of Python a call enters."""
    count = 0

    def seen(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def test_a_run_of_a_plan_that_was_seen_enters_few_functions(session):
    for _ in range(3):
        session.run(None, X)
    # One for each room on the way, with locks and blocks; checks made anew would be 150.
    assert _calls(lambda: session.run(None, X)) < 55


@pytest.mark.parametrize("x", [np.ones((2, 4), np.float32), np.ones((2, 3)), np.ones((3,), np.float32)], ids=str)
def test_what_does_not_fit_is_refused_after_what_did(session, x):
    session.run(None, X)
    with pytest.raises(InputError, match="x"):
        session.run(None, {"x": x})
    (y,) = session.run(None, X)
    assert (y == -1).all()


@pytest.mark.parametrize("names", [["z"], [["y"]], "y", [1]], ids=str)
def test_so_are_outputs_that_are_not_there(session, names):
    session.run(["y"], X)
    with pytest.raises(InputError):
        session.run(names, X)


def test_arrays_in_other_orders_and_read_only_ones_are_taken(session):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    locked = x.copy()
    locked.flags.writeable = False
    for fed in (x, np.asfortranarray(x), x[:, ::-1][:, ::-1], x.astype(">f4"), locked, x.tolist()):
        np.testing.assert_array_equal(session.run(None, {"x": fed})[0], -x)


def test_results_are_memory_of_their_own(session):
    first = session.run(None, X)[0]
    session.run(None, {"x": X["x"] * 5})
    assert (first == -1).all()


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_run_leaves_autograd_as_it_was_and_its_results_are_not_recorded(session, mode):
    x = torch.ones(2, 3, requires_grad=True)
    with mode():
        before = torch.is_grad_enabled()
        (y,) = session.run_tensors(None, {"x": x})
        assert torch.is_grad_enabled() is before and not y.requires_grad
        with pytest.raises(InputError):
            session.run(None, {"x": np.ones(3, np.float32)})
        assert torch.is_grad_enabled() is before
