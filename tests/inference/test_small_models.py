"""Small models as one call of onnxruntime: only where its results are the provider's, and feeds are few and plain."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from skl2onnx import to_onnx
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import ontrain
from ontrain.inference.small_models import SmallModel, equal_results
from tests.inference.short_ways import count_answers
from tests.threads import at_once

TORCH = ["TorchExecutionProvider"]
MODELS = {
    "linear": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
    "forest": lambda: RandomForestClassifier(5, random_state=0),
    "regressor": lambda: RandomForestRegressor(5, random_state=0),
    "machine": lambda: SVC(probability=True, random_state=0),
    "neighbours": KNeighborsClassifier,
}


@pytest.fixture(autouse=True)
def joined(monkeypatch):
    monkeypatch.setenv("ONTRAIN_JOIN", "1")


@pytest.fixture
def served(monkeypatch):
    """How many runs were one call."""
    return count_answers(monkeypatch, SmallModel, "run")


def _trained(name, rng, *, words=False, zipmap=True):
    x = rng.standard_normal((60, 4)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(int) + (x[:, 2] > 0)
    labels = np.array(["low", "middle", "high"])[y] if words else y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MODELS[name]().fit(x, labels)
        options = {} if name == "regressor" or zipmap else {id(model): {"zipmap": False}}
        return to_onnx(model, x[:1], options=options or None, target_opset=18), x


def _as_stock(content: bytes, feeds, runs=5):
    theirs = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    ours = ontrain.InferenceSession(content, providers=TORCH)
    for _ in range(runs):
        for a, b in zip(ours.run(None, feeds), theirs.run(None, feeds), strict=True):
            if isinstance(b, list):
                assert [list(row) for row in a] == [list(row) for row in b]
                np.testing.assert_allclose([[*r.values()] for r in a], [[*r.values()] for r in b], rtol=1e-4, atol=1e-5)
            elif b.dtype.kind == "f":
                assert a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
            else:
                assert a.dtype == b.dtype and np.array_equal(a, b)
    return ours


@pytest.mark.parametrize("words", [False, True], ids=["numbers", "words"])
@pytest.mark.parametrize("name", MODELS)
def test_classical_models_are_one_call_from_the_fourth_run_on(rng, served, name, words):
    if name == "regressor" and words:
        pytest.skip("it predicts numbers")
    proto, x = _trained(name, rng, words=words)
    _as_stock(proto.SerializeToString(), {proto.graph.input[0].name: x[:3]})
    assert served[0] == 2


def test_the_first_run_opens_no_session_beside_the_providers_own(rng):
    proto, x = _trained("linear", rng)
    session = ontrain.InferenceSession(proto.SerializeToString(), providers=TORCH)
    opened = []
    for _ in range(2):
        session.run(None, {proto.graph.input[0].name: x[:3]})
        opened.append(session._own._session._short._small._session is not None)
    assert opened == [False, True]


def test_any_number_of_rows_up_to_a_bound(rng, served):
    proto, x = _trained("forest", rng)
    name = proto.graph.input[0].name
    session = ontrain.InferenceSession(proto.SerializeToString(), providers=TORCH)
    stock = onnxruntime.InferenceSession(proto.SerializeToString())
    many = np.concatenate([x] * 60)
    for rows in (4, 1, 2, 3, 50, 3600, 7):
        labels, wanted = session.run(None, {name: many[:rows]})[0], stock.run(None, {name: many[:rows]})[0]
        assert np.array_equal(labels, wanted)
    assert served[0] == 3  # 3, 50 and 7 rows


def test_results_that_differ_leave_the_model_to_the_provider(rng, served, monkeypatch):
    proto, x = _trained("linear", rng)
    feeds = {proto.graph.input[0].name: x[:3]}
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    wrong = onnx.ModelProto.FromString(proto.SerializeToString())
    for node in wrong.graph.node:
        for attribute in node.attribute:
            if attribute.name == "coefficients":
                attribute.floats[:] = [-number for number in attribute.floats]
    usual = SmallModel.of
    monkeypatch.setattr(SmallModel, "of", classmethod(lambda cls, _: usual(wrong)))
    session = ontrain.InferenceSession(proto.SerializeToString(), providers=TORCH)
    for _ in range(5):
        assert np.array_equal(session.run(None, feeds)[0], wanted[0])
    assert served[0] == 0 and session._own._session._short._small is None


def test_outputs_by_name_and_feeds_of_other_forms(rng, served):
    proto, x = _trained("linear", rng)
    name, outputs = proto.graph.input[0].name, [value.name for value in proto.graph.output]
    session = _as_stock(proto.SerializeToString(), {name: x[:3]})
    before = served[0]
    labels, maps = session.run(None, {name: x[:3]})
    assert session.run([outputs[1]], {name: x[:3]}) == [maps]
    assert np.array_equal(session.run(outputs[:1], {name: x[:3].tolist()})[0], labels)
    assert np.array_equal(session.run(outputs[:1], {name: x[:3].astype(">f4")})[0], labels)
    assert served[0] == before + 2


def test_wrong_feeds_are_told_as_before(rng):
    proto, x = _trained("linear", rng)
    name = proto.graph.input[0].name
    session = _as_stock(proto.SerializeToString(), {name: x[:3]})
    for wrong, names, told in (
        ({}, None, name), ({name: x[:3].astype(np.float64)}, None, name), ({name: x[:3]}, ["nothing"], "nothing"),
    ):  # fmt: skip
        with pytest.raises(ontrain.InputError, match=told):
            session.run(names, wrong)
    with pytest.raises(ontrain.OntrainError):
        session.run(None, {name: x[:3, :2]})


def _model(nodes, inputs, outputs, weights=()):
    graph = helper.make_graph(nodes, "small", inputs, outputs, list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _floats(name, *shape):
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


@pytest.mark.parametrize("reason", ["it draws", "it is large", "nobody tried the operator"])
def test_models_that_are_no_small_ones(reason, rng):
    weights = []
    if reason == "it draws":
        nodes = [helper.make_node("RandomNormalLike", ["x"], ["y"])]
    elif reason == "it is large":
        weights = [numpy_helper.from_array(rng.standard_normal((1100, 1100)).astype(np.float32), "w")]
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    else:
        nodes = [helper.make_node("Optional", ["x"], ["o"]), helper.make_node("OptionalGetElement", ["o"], ["y"])]
    assert SmallModel.of(_model(nodes, [_floats("x", None)], [_floats("y", None)], weights)) is None


SPLIT = helper.make_node("StringSplit", ["x"], ["y", "n"], delimiter=" ")
ENCODE = helper.make_node("OneHotEncoder", ["x"], ["y"], domain="ai.onnx.ml", cats_int64s=[3, 0, 2])


def _of_one_node(kind):
    """A file of one node, and what is fed it: more than small models are fed on several threads."""
    if kind == "texts":
        nodes, elements, x = [SPLIT], (onnx.TensorProto.STRING, onnx.TensorProto.INT64), ["a  b", "c", " d "] * 3000
    else:
        nodes, elements, x = [ENCODE], (onnx.TensorProto.FLOAT,), [0, 1, 2, 3] * 3000
    x = np.array(x, object if kind == "texts" else np.int64)
    inputs = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), [None])]
    outputs = [helper.make_tensor_value_info(n, e, None) for n, e in zip(nodes[0].output, elements, strict=True)]
    proto = _model(nodes, inputs, outputs)
    proto.opset_import.add(domain="ai.onnx.ml", version=3)
    return proto.SerializeToString(), {"x": x}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["texts", "numbers"])
def test_on_one_thread_a_single_node_is_onnxruntimes_whatever_it_is_fed(served, kind, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        _as_stock(*_of_one_node(kind), runs=6)
    finally:
        torch.set_num_threads(before)
    assert (served[0] > 0) == (threads == 1)


@pytest.mark.parametrize("wrong", [3, None, b"c"])
def test_what_is_no_text_among_texts_is_not_onnxruntimes(served, wrong):
    model, _ = _of_one_node("texts")
    session = _as_stock(model, {"x": np.array(["a b", "c"], object)})
    before = served[0]
    assert before
    session.run(None, {"x": np.array(["a b", wrong], object)})
    assert served[0] == before


def test_a_sum_near_zero_is_as_exact_as_the_largest():
    a, b = np.array([4000.0, 0.001], np.float32), np.array([4000.0, 0.002], np.float32)
    assert equal_results([a], [b], 1e-5) and not equal_results([a], [a + 1], 1e-5)
    assert not equal_results([a / 4000], [b / 2000], 1e-5)


def test_threads_share_a_small_model(rng):
    proto, x = _trained("forest", rng)
    name = proto.graph.input[0].name
    session = ontrain.InferenceSession(proto.SerializeToString(), providers=TORCH)
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {name: x})[0]
    wrong = []

    def work(start):
        for turn in range(60):
            rows = 1 + (start * 7 + turn) % 50
            if not np.array_equal(session.run(None, {name: x[:rows]})[0], wanted[:rows]):
                wrong.append(rows)

    at_once(*(functools.partial(work, i) for i in range(8)))
    assert not wrong


COLLECTS = """
    <ir_version: 8, opset_import: ["" : 17]>
    collect (float[rows, 3] x, int64 rounds) => (float[total, 3] y)
    <bool yes = {1}>
    {
        none = SequenceEmpty()
        parts = Loop (rounds, yes, none) <body = round (int64 i, bool going, seq(float[m, 3]) before)
            => (bool on, seq(float[m, 3]) after)
            { on = Identity(going) real = Cast <to = 1> (i) part = Add(x, real) after = SequenceInsert(before, part) }>
        y = ConcatFromSequence <axis = 0> (parts)
    }"""
ENDLESS = """
    <ir_version: 8, opset_import: ["" : 17]>
    halve (float[n] x, float least) => (float[n] y, int64 rounds)
    <int64 zero = {0}, int64 one = {1}, bool yes = {1}, float half = {0.5}>
    {
        y, rounds = Loop (, yes, x, zero) <body = round (int64 i, bool going, float[n] v, int64 count)
            => (bool on, float[n] w, int64 more)
            { w = Mul(v, half) more = Add(count, one) top = ReduceMax <keepdims = 0> (w) on = Greater(top, least) }>
    }"""


def test_loops_that_collect_a_sequence_are_one_call(rng, served):
    content = onnx.parser.parse_model(COLLECTS).SerializeToString()
    feeds = {"x": rng.standard_normal((4, 3)).astype(np.float32), "rounds": np.array(5)}
    ours = _as_stock(content, feeds)
    assert served[0] == 2
    theirs = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for rows, rounds in ((2, 1), (7, 12)):
        feeds = {"x": rng.standard_normal((rows, 3)).astype(np.float32), "rounds": np.array(rounds)}
        np.testing.assert_array_equal(ours.run(None, feeds)[0], theirs.run(None, feeds)[0])
    assert served[0] == 4


def test_a_loop_of_one_call_that_would_not_end_is_stopped(served, monkeypatch):
    monkeypatch.setenv("ONTRAIN_LOOP_LIMIT", "50")
    content = onnx.parser.parse_model(ENDLESS).SerializeToString()
    ours = _as_stock(content, {"x": np.ones(3, np.float32), "least": np.array(0.01, np.float32)})
    assert served[0] == 2
    with pytest.raises(ontrain.ProviderError, match="50"):
        ours.run(None, {"x": np.ones(3, np.float32), "least": np.array(-1, np.float32)})
