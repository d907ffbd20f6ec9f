"""Files whose types and branches follow from shapes and fed numbers: a plan where they do, steps where data decide."""

from __future__ import annotations

import functools

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ontrain
from ontrain.inference import sized
from tests.threads import at_once


def _branch(name, kind, source="x", **attributes):
    """A graph of one node that reads what lies around it."""
    inputs = [source, "first"] if kind == "Squeeze" else [source]
    return helper.make_graph(
        [helper.make_node(kind, inputs, [name], **attributes)], name, [],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
    )  # fmt: skip


def _file(nodes, inputs, *, rank=None):
    constants = [
        numpy_helper.from_array(np.array(value), name)
        for name, value in {"first": [0], "one": [1], "many": 16000, "zero": np.float32(0)}.items()
    ]
    shape = None if rank is None else [f"y{i}" for i in range(rank)]
    graph = helper.make_graph(
        nodes, "branches", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)], constants
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString()


def _value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


X = _value("x", TensorProto.FLOAT, ["a", "b"])


def by_shape():
    """Squeeze where the first axis is one: the rank follows from the shape."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Gather", ["shape", "first"], ["size"]),
        helper.make_node("Equal", ["size", "one"], ["is_one"]),
        helper.make_node("If", ["is_one"], ["r"], then_branch=_branch("t", "Squeeze"), else_branch=_branch("e", "Neg")),
        helper.make_node("Shape", ["r"], ["after"]), helper.make_node("Reshape", ["r", "after"], ["s"]),
        helper.make_node("Exp", ["s"], ["y"]),
    ]  # fmt: skip
    return _file(nodes, [X])


def squeezed():
    """Squeeze without axes: how many axes are left follows from the shape."""
    nodes = [
        helper.make_node("Squeeze", ["x"], ["s"]), helper.make_node("Sigmoid", ["s"], ["r"]),
        helper.make_node("Exp", ["r"], ["y"]),
    ]  # fmt: skip
    return _file(nodes, [X])


def by_number(kind=TensorProto.INT64):
    """A rate that is fed decides, as in detectors of speech; both ways have one rank."""
    nodes = [
        helper.make_node("Equal", ["sr", "many"], ["is_many"]),
        helper.make_node("If", ["is_many"], ["r"], then_branch=_branch("t", "Abs"), else_branch=_branch("e", "Neg")),
        helper.make_node("Exp", ["r"], ["y"]),
    ]
    return _file(nodes, [X, _value("sr", kind, [])], rank=2)


def by_data():
    """The sum of what is fed decides the rank."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["more"]),
        helper.make_node("If", ["more"], ["r"], then_branch=_branch("t", "Squeeze"), else_branch=_branch("e", "Neg")),
        helper.make_node("Shape", ["r"], ["after"]), helper.make_node("Reshape", ["r", "after"], ["s"]),
        helper.make_node("Exp", ["s"], ["y"]),
    ]  # fmt: skip
    return _file(nodes, [X])


def _sessions(content):
    stock = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return stock, ontrain.InferenceSession(content, providers=["TorchExecutionProvider"])


def _check(stock, ours, feeds):
    for y, wanted in zip(ours.run(None, feeds), stock.run(None, feeds), strict=True):
        assert y.shape == wanted.shape
        np.testing.assert_allclose(y, wanted, 1e-5, 1e-6)


def _plans(session):
    return list(session._own._session._planner.plans.values())


def _x(*shape, sign=1):
    return (sign * np.random.default_rng(len(shape)).random(shape)).astype(np.float32)


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Let each combination of sizes have a plan: a small model as a whole needs none."""
    monkeypatch.setenv("ONTRAIN_JOIN", "0")


@pytest.mark.parametrize("make", [by_shape, squeezed])
def test_a_rank_that_follows_from_the_shape_is_planned(make):
    stock, ours = _sessions(make())
    for shape in ((1, 4), (3, 4), (1, 4), (1, 7)):
        _check(stock, ours, {"x": _x(*shape)})
    plans = _plans(ours)
    assert len(plans) == 3 and all("If" not in {n.op_type for n in plan.model.graph} for plan in plans)


def test_a_number_that_is_fed_takes_its_branch():
    stock, ours = _sessions(by_number())
    for rate in (16000, 8000, 16000, 0):
        _check(stock, ours, {"x": _x(2, 3, sign=-1), "sr": np.array(rate)})
    assert all("If" not in {n.op_type for n in plan.model.graph} for plan in _plans(ours))


def test_a_number_that_counts_runs_has_no_plan_for_each():
    stock, ours = _sessions(by_number())
    for rate in range(4 * sized._VALUES):
        _check(stock, ours, {"x": _x(2, 3, sign=-1), "sr": np.array(rate)})
    _check(stock, ours, {"x": _x(2, 3, sign=-1), "sr": np.array(16000)})
    assert len(_plans(ours)) <= sized._VALUES + 1


def test_branches_that_data_decide_run_as_they_did():
    stock, ours = _sessions(by_data())
    for shape, sign in (((1, 4), 1), ((1, 4), -1), ((3, 4), -1), ((1, 5), 1), ((1, 6), -1), ((1, 4), 1)):
        _check(stock, ours, {"x": _x(*shape, sign=sign)})


@pytest.mark.parametrize("make", [by_shape, by_data])
def test_threads_share_a_session(make):
    stock, ours = _sessions(make())
    feeds = [{"x": _x(1 + i % 2, 2 + i, sign=1 if i % 2 == 0 else -1)} for i in range(6)]

    def run(first):
        for i in range(30):
            _check(stock, ours, feeds[(first + i) % len(feeds)])

    at_once(*(functools.partial(run, first) for first in range(6)))


def test_what_does_not_fit_is_refused_by_name():
    _, ours = _sessions(by_shape())
    with pytest.raises(ontrain.InputError, match="x"):
        ours.run(None, {"x": np.ones((2, 3), np.int64)})
    with pytest.raises(ontrain.InputError, match="x"):
        ours.run(None, {"x": np.ones(3, np.float32)})
