"""Loops as programs write them, with a counter that is compared: planned whole, and right whatever ends them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import ontrain

WIDTH = 3


def _model(*, limit: str = "", begins: str = "i0, length", goes: str = "j, most", kind: str = "INT64") -> bytes:
    """y = Σ xₜ · w and the rows so far, by a loop over the rows t = 0, 1, … as long as `goes` says Less."""
    number = {"INT64": "int64", "INT32": "int32"}[kind]
    to = int(onnx.TensorProto.DataType.Value(kind))
    text = f"""
    <ir_version: 9, opset_import: ["" : 17]>
    loops (float[length, {WIDTH}] x, float[{WIDTH}] w, float bound)
        => (float[{WIDTH}] y, float[rows, {WIDTH}] rows, float[{WIDTH}] same, {number} count)
    <int64 first = {{0}}, int64 most_rounds = {{4}}, float[{WIDTH}] zeros = {{0, 0, 0}}>
    {{
        sizes = Shape(x)
        size = Gather(sizes, first)
        length = Cast<to = {to}>(size)
        i0 = Cast<to = {to}>(first)
        go = Less({begins})
        y, same, count, _most, rows = Loop({limit}, go, zeros, w, i0, length) <body = round
            (int64 at, bool before, float[{WIDTH}] sum, float[{WIDTH}] kept, {number} i, {number} most)
            => (bool after, float[{WIDTH}] total, float[{WIDTH}] handed, {number} j, {number} limit, float[{WIDTH}] row)
            <{number} one = {{1}}>
            {{
                place = Cast<to = 7>(i)
                xi = Gather(x, place)
                product = Mul(xi, kept)
                total = Add(sum, product)
                row = Identity(total)
                handed = Identity(kept)
                limit = Identity(most)
                j = Add(i, one)
                size_of_sum = ReduceSum<keepdims = 0>(total)
                after = Less({goes})
            }}>
    }}"""
    return onnx.parser.parse_model(text).SerializeToString()


def _feeds(rng, length):
    return {
        "x": rng.standard_normal((length, WIDTH)).astype(np.float32),
        "w": rng.standard_normal(WIDTH).astype(np.float32), "bound": np.array(0.5, np.float32),
    }  # fmt: skip


def _check(model, rng, lengths=(6, 1, 40), providers=("Torch", "Reference")):
    stock = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    sessions = [ontrain.InferenceSession(model, providers=[f"{name}ExecutionProvider"]) for name in providers]
    for length in lengths:
        fed = _feeds(rng, length)
        wanted = stock.run(None, fed)
        for session in sessions:
            for a, b in zip(session.run(None, fed), wanted, strict=True):
                assert a.shape == b.shape
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return sessions[0]


def _is_planned(session) -> bool:
    return session._own._session._stepwise is None


@pytest.mark.parametrize("kind", ["INT64", "INT32"])
def test_a_counter_up_to_a_size_is_planned_whole(rng, kind):
    assert _is_planned(_check(_model(kind=kind), rng))


def test_a_limit_that_comes_first_ends_the_loop(rng):
    session = _check(_model(limit="most_rounds"), rng, lengths=(40, 3))
    assert _is_planned(session)


def test_a_loop_that_does_not_begin_has_no_rows(rng):
    assert _is_planned(_check(_model(begins="length, i0"), rng, providers=("Torch",)))


def test_the_number_of_the_iteration_counts_as_well(rng):
    assert _is_planned(_check(_model(goes="at, first", limit="most_rounds"), rng, lengths=(5, 9)))


def test_a_loop_that_data_ends_runs_in_steps(rng):
    session = _check(_model(goes="size_of_sum, bound", limit="size"), rng)
    assert not _is_planned(session)


def test_a_counter_that_never_ends_is_refused(rng, monkeypatch):
    monkeypatch.setenv("ONTRAIN_LOOP_LIMIT", "50")
    model = _model(goes="one, most")
    fed = {**_feeds(rng, 6), "x": np.zeros((200, WIDTH), np.float32)}
    with pytest.raises(ValueError, match="more than 50 rounds|out of"):
        ontrain.InferenceSession(model, providers=["TorchExecutionProvider"]).run(None, fed)


def test_what_passes_through_unchanged_is_not_copied_in_each_round(rng):
    session = _check(_model(), rng, lengths=(600,))
    (plan,) = session._own._session._planner.plans.values()
    loop = next(i for i in plan.executable.current._program if i.node is not None and i.node.op_type == "Loop")
    assert loop.node.attributes["carried"].as_int() <= 3  # the sum and the counter, not w and the length
