"""Runs of a plan that is one call, from arrays to arrays: the same results, errors and records as the usual way's."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper

import ontrain
from ontrain.inference.graph_inference import GraphSession
from tests.inference.short_ways import count_answers
from tests.threads import at_once

TORCH = ["TorchExecutionProvider"]


@pytest.fixture(autouse=True)
def joined(monkeypatch):
    monkeypatch.setenv("ONTRAIN_JOIN", "1")


@pytest.fixture
def model(rng) -> bytes:
    """p = softplus(x w + y), q = |p| w, both of them outputs; w has a default, and may be fed."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Add", ["xw", "y"], ["s"]),
        helper.make_node("Softplus", ["s"], ["p"]), helper.make_node("Abs", ["p"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["q"]),
    ]  # fmt: skip
    values = [helper.make_tensor_value_info(name, 1, ["n", 4]) for name in "xypq"]
    weight = helper.make_tensor_value_info("w", 1, [4, 4])
    w = numpy_helper.from_array(rng.standard_normal((4, 4)).astype(np.float32), "w")
    graph = helper.make_graph(nodes, "small", [*values[:2], weight], values[2:], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


@pytest.fixture
def taken(monkeypatch):
    """How often a run took the short way."""
    return count_answers(monkeypatch, GraphSession, "at_once")


def _feeds(rng, n=2):
    return {name: rng.standard_normal((n, 4)).astype(np.float32) for name in "xy"}


def _both(model, **options):
    return (
        onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]),
        ontrain.InferenceSession(model, providers=TORCH, **options),
    )


def _equal(ours, theirs, feeds, names=None):
    for a, b in zip(ours.run(names, feeds), theirs.run(names, feeds), strict=True):
        assert type(a) is np.ndarray and a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_it_is_taken_from_the_second_run_of_a_batch_size_on(model, rng, taken):
    theirs, ours = _both(model)
    for n in (2, 2, 2, 3, 2, 2, 3, 3):
        _equal(ours, theirs, _feeds(rng, n))
    assert taken[0] >= 3


@pytest.mark.parametrize("names", [["q"], ["p"], ["q", "p"], ["p", "q", "p"], [], ("q",)], ids=str)
def test_outputs_by_name(model, rng, taken, names):
    theirs, ours = _both(model)
    for _ in range(4):
        _equal(ours, theirs, _feeds(rng), names)
    assert taken[0]


@pytest.mark.parametrize("form", ["other order", "every second", "big end", "lists", "tensors", "doubles", "a mapping"])
def test_feeds_of_other_forms(model, rng, form):
    theirs, ours = _both(model)
    for _ in range(3):
        feeds = _feeds(rng)
        _equal(ours, theirs, feeds)
    x = feeds["x"]
    fed = {
        "other order": np.asfortranarray(x), "every second": np.repeat(x, 2, 1)[:, ::2], "big end": x.astype(">f4"),
        "lists": x.tolist(), "tensors": torch.from_numpy(x), "doubles": x.astype(np.float64), "a mapping": x,
    }[form]  # fmt: skip
    if form == "doubles":
        with pytest.raises(ontrain.InputError):
            ours.run(None, {**feeds, "x": fed})
        return
    other = {**feeds, "x": fed}
    if form == "a mapping":
        other = MappingProxyType(other)
    for a, b in zip(ours.run(None, other), theirs.run(None, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_wrong_feeds_and_names_are_refused_as_before(model, rng, taken):
    _, ours = _both(model)
    feeds = _feeds(rng)
    for _ in range(3):
        ours.run(None, feeds)
    before = taken[0]
    for wrong, names, told in (
        ({"x": feeds["x"]}, None, "'y'"), ({**feeds, "z": feeds["x"]}, None, "no input 'z'"),
        (feeds, ["r"], "no output 'r'"),
        ({"x": feeds["x"], "z": feeds["y"]}, None, "no input 'z'"), ({**feeds, "x": feeds["x"][:, :3]}, None, "x"),
    ):  # fmt: skip
        with pytest.raises(ontrain.InputError, match=told):
            ours.run(names, wrong)
    assert taken[0] == before


def test_results_are_memory_of_their_own(model, rng):
    _, ours = _both(model)
    feeds = _feeds(rng)
    ours.run(None, feeds)
    first = ours.run(None, feeds)
    copies = [array.copy() for array in first]
    first[0][:] = 7
    second = ours.run(None, feeds)
    assert np.array_equal(second[0], copies[0]) and np.array_equal(first[1], copies[1]) and (first[0] == 7).all()


def test_a_weight_that_is_fed_counts(model, rng):
    theirs, ours = _both(model)
    for w in (None, rng.standard_normal((4, 4)).astype(np.float32), None):
        for _ in range(3):
            _equal(ours, theirs, _feeds(rng) if w is None else {**_feeds(rng), "w": w})


def test_inner_values_and_a_stopped_run(model, rng):
    theirs, ours = _both(model)
    feeds = _feeds(rng)
    for _ in range(3):
        ours.run(None, feeds)
    (s,) = ours.run(["s"], feeds)
    np.testing.assert_allclose(np.log1p(np.exp(s)), theirs.run(["p"], feeds)[0], rtol=1e-5)
    options = ontrain.RunOptions()
    options.terminate = True
    with pytest.raises(ontrain.OntrainError):
        ours.run(None, feeds, options)


def test_a_profile_records_each_run(model, rng, tmp_path):
    options = ontrain.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "trace")
    ours = ontrain.InferenceSession(model, options, providers=TORCH)
    for _ in range(4):
        ours.run(None, _feeds(rng))
    events = json.loads(Path(ours.end_profiling()).read_text())
    assert sum(event["name"] == "model_run" for event in events) == 4


def test_eight_threads_at_five_sizes(model, rng):
    theirs, ours = _both(model)
    fed = [_feeds(rng, n) for n in range(1, 6)]
    wanted, wrong = [theirs.run(None, feeds) for feeds in fed], []

    def work(start):
        for turn in range(80):
            at = (start + turn // 7) % len(fed)
            for a, b in zip(ours.run(None, fed[at]), wanted[at], strict=True):
                if a.shape != b.shape or not np.allclose(a, b, rtol=1e-5, atol=1e-6):
                    wrong.append(at)

    at_once(*(functools.partial(work, i) for i in range(8)))
    assert not wrong


@pytest.mark.parametrize("outputs", ["yz", "yy", "zyz"])
def test_an_output_that_is_an_input_too_or_stands_twice(rng, outputs):
    steps = (("Exp", "x", "e"), ("Neg", "e", "f"), ("Abs", "f", "y"), ("Identity", "x", "z"))
    nodes = [helper.make_node(operator, [read], [result]) for operator, read, result in steps]
    values = [helper.make_tensor_value_info(name, 1, [3]) for name in "x" + outputs]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", values[:1], values[1:]), opset_imports=[helper.make_opsetid("", 20)], ir_version=9
    )
    theirs, ours = _both(proto.SerializeToString())
    for _ in range(3):
        _equal(ours, theirs, {"x": rng.standard_normal(3).astype(np.float32)})
