"""Graphs that no plan holds whole, against stock onnxruntime."""

from __future__ import annotations

import random
import re

import numpy as np
import onnx
import onnxruntime
import pytest

import ontrain
from ontrain import ProviderError
from ontrain.session import planner
from tests.inference.stepwise.models import BRANCHES, MODELS, Model, floats
from tests.threads import at_once

TORCH, SIZES = "TorchExecutionProvider", (5, 3, 8, 5)


def own(model: bytes) -> ontrain.InferenceSession:
    return ontrain.InferenceSession(model, providers=[TORCH])


def stock(model: bytes) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def assert_same(actual: object, expected: object) -> None:
    """Values of any type are equal, up to rounding, and of one type."""
    assert type(actual) is type(expected)
    if isinstance(expected, list):
        assert isinstance(actual, list) and len(actual) == len(expected)
        for mine, theirs in zip(actual, expected, strict=True):
            assert_same(mine, theirs)
    elif isinstance(expected, np.ndarray) and expected.dtype != object:
        assert isinstance(actual, np.ndarray) and actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", MODELS)
def test_results_and_descriptions_are_onnxruntimes(name):
    model = MODELS[name].serialized()
    mine, theirs = own(model), stock(model)
    for ours, others in ((mine.get_inputs(), theirs.get_inputs()), (mine.get_outputs(), theirs.get_outputs())):
        assert [(v.name, v.type) for v in ours] == [(v.name, v.type) for v in others]
    for size in SIZES:
        feeds = MODELS[name].feeds(size)
        assert_same(mine.run(None, feeds), theirs.run(None, feeds))


@pytest.mark.parametrize("providers", [[TORCH], [TORCH, "CPUExecutionProvider"]], ids=["alone", "in a list"])
def test_what_is_too_large_for_the_machine_is_tried_no_other_way(providers, recwarn):
    graph = """<ir_version: 8, opset_import: ["" : 18]>
    m (float[n] x, float[k] more) => (float[s] y) {
        twice = Concat<axis = 0>(x, more)
        %s
        y = Relu(v49)
    }"""
    # 64 values become 2^56.
    doubled = [f"v{i} = Concat<axis = 0>({a}, {a})" for i, a in enumerate(["twice", *(f"v{i}" for i in range(49))])]
    model = onnx.parser.parse_model(graph % "\n".join(doubled))
    session = ontrain.InferenceSession(model, providers=providers)
    with pytest.raises(ontrain.GraphError, match="Concat needs .* at once"):
        session.run(None, {"x": floats(32), "more": floats(32)})
    assert session.get_providers() == [TORCH] and not recwarn.list


def test_threads_that_share_a_session_get_their_own_results():
    model = BRANCHES.serialized()
    session, alone = own(model), stock(model)
    feeds = [{"x": floats(size, 4, seed=size)} for size in range(1, 13)]
    expected = [alone.run(None, fed) for fed in feeds]

    def work(number: int) -> None:
        order = random.Random(number)
        for _ in range(20):
            which = order.randrange(len(feeds))
            assert_same(session.run(None, feeds[which]), expected[which])

    at_once(*(lambda number=number: work(number) for number in range(8)))


@pytest.fixture
def planned(monkeypatch) -> list[str]:
    """A line for each plan that is made."""
    plans: list[str] = []
    make = planner.make_plan

    def counted(model, *args, **kwargs):
        plans.append(model.graph.name)
        return make(model, *args, **kwargs)

    monkeypatch.setattr(planner, "make_plan", counted)
    return plans


@pytest.mark.parametrize("name", ["branches", "a loop that stops by its data", "a sequence made in a loop"])
def test_what_was_planned_once_is_planned_no_more(name, planned):
    session = own(MODELS[name].serialized())
    session.run(None, MODELS[name].feeds(9))
    first = len(planned)
    assert 0 < first < 9
    session.run(None, MODELS[name].feeds(9))
    assert len(planned) == first


def test_results_share_no_memory_with_feeds_weights_or_one_another():
    model = Model(
        """m (float[4] x) => (float[2] head, float[2] tail, float[4] again, int64[1, k] places)
        <int64[1] none = {0}, int64[1] two = {2}, int64[1] four = {4}> {
            places = NonZero(x)
            count = Shape(places)
            rows = Gather<axis = 0>(count, none)
            start = Mul(rows, none)
            end = Mul(rows, two)
            head = Slice(x, start, end, none)
            tail = Slice(x, end, four, none)
            size = Mul(rows, four)
            again = Reshape(x, size)
        }""",
        lambda size: {"x": floats(4)},
    )
    session, x = own(model.serialized()), np.arange(1, 5, dtype=np.float32)
    results = session.run(None, {"x": x})
    for result in results:
        result[:] = 0
    np.testing.assert_array_equal(x, [1, 2, 3, 4])
    head, tail, again, _ = session.run(None, {"x": x})
    assert (head.tolist(), tail.tolist(), again.tolist()) == ([1, 2], [3, 4], [1, 2, 3, 4])


LOOPS_ON = Model(
    """m (float[n] x) => (float[n] y) {
        yes = Constant<value = bool {1}>()
        y, places = Loop("", yes, x) <
            body = body (int64 i, bool go, float[n] state) => (bool again, float[n] next, int64[1, k] row) {
                zero = Constant<value = float {0}>()
                size = ReduceL2<keepdims = 0>(state)
                again = GreaterOrEqual(size, zero)
                row = NonZero(state)
                next = Neg(state)
            }
        >
    }""",
    lambda size: {"x": floats(size)},
)


def test_a_loop_without_end_is_stopped(monkeypatch):
    monkeypatch.setenv("ONTRAIN_LOOP_LIMIT", "30")
    with pytest.raises(ProviderError, match="more than 30 rounds"):
        own(LOOPS_ON.serialized()).run(None, {"x": np.ones(3, np.float32)})


@pytest.mark.parametrize(
    ("text", "feeds", "says"),
    [
        (
            "m (seq(float[n]) xs, int64 at) => (float[n] y) { y = SequenceAt(xs, at) }",
            {"xs": [np.zeros(2, np.float32)], "at": np.array(1)},
            "SequenceAt.*position 1 of a sequence of 1",
        ),
        (
            """m (float[n] x) => (float[k] y) {
                places = NonZero(x)
                axis = Constant<value = int64[1] {0}>()
                which = Squeeze(places, axis)
                two = Constant<value = int64[1] {2}>()
                y = Reshape(which, two)
            }""",
            {"x": np.ones(3, np.float32)},
            "Reshape",
        ),
        (
            "m (optional(float[n]) x) => (float[n] y) { y = OptionalGetElement(x) }",
            {"x": None},
            "empty.*OptionalGetElement",
        ),
    ],
)
def test_what_cannot_run_is_told_by_its_node(text, feeds, says):
    session = own(Model(text, lambda size: feeds).serialized())
    with pytest.raises(ontrain.OntrainError) as error:
        session.run(None, feeds)
    assert re.search(says, str(error.value), re.DOTALL)


def test_optional_values_come_and_go():
    model = Model(
        """m (optional(float[n]) x, bool there) => (optional(float[n]) same, bool full) {
            same = Identity(x)
            full = OptionalHasElement(x)
        }""",
        lambda size: {},
    ).serialized()
    session = own(model)
    assert [value.type for value in session.get_inputs()] == ["optional(tensor(float))", "tensor(bool)"]
    x = floats(3)
    assert_same(session.run(None, {"x": x, "there": np.array(True)}), [x, np.array(True)])
    assert_same(session.run(None, {"x": None, "there": np.array(True)}), [None, np.array(False)])


def test_inner_values_are_given_by_name():
    model = BRANCHES.serialized()
    feeds = BRANCHES.feeds(4)
    session = own(model)
    h, places = session.run(["h", "places"], feeds)
    np.testing.assert_array_equal(np.stack(np.nonzero(h > 0)), places)


def test_a_number_beside_nans_is_one_value():
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        net (float[n] x) => (float[m] y, int64[n] places, int64[m] counts)
        { y, places, counts = com.microsoft.Unique(x) }"""
    model = onnx.parser.parse_model(text).SerializeToString()
    x = np.float32([np.nan, 0.0, 3, -0.0, np.nan, 3, 1])
    assert_same(own(model).run(None, {"x": x}), stock(model).run(None, {"x": x}))
