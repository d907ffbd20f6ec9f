"""Models of bytes, and in ever new sizes: onnxruntime runs them where plans are slow and its results the same."""

from __future__ import annotations

import functools
import queue

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper, parser
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

import ontrain
from ontrain.inference import handed_over
from ontrain.inference.handed_over import HandedOver
from tests.inference.short_ways import count_answers
from tests.threads import at_once

TORCH = ["TorchExecutionProvider"]
WIDTH = 64


@pytest.fixture(autouse=True)
def joined(monkeypatch):
    monkeypatch.setenv("ONTRAIN_JOIN", "1")


@pytest.fixture
def served(monkeypatch):
    """How many runs were one call."""
    return count_answers(monkeypatch, HandedOver, "run")


@pytest.fixture
def decoder(rng) -> onnx.ModelProto:
    """A step of a decoder: keys of earlier steps come in, and go out with one more."""
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        step (float[b, n, 64] x, float[b, past, 64] keys) => (float[b, n, 64] y, float[b, total, 64] all_keys)
        {
            q = MatMul(x, w)
            all_keys = Concat <axis = 1> (keys, x)
            turned = Transpose <perm = [0, 2, 1]> (all_keys)
            scores = MatMul(q, turned)
            shares = Softmax <axis = -1> (scores)
            mixed = MatMul(shares, all_keys)
            y = MatMul(mixed, v)
        }""")
    for name in "wv":
        weight = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model


def _feeds(rng, past, rows=1, batch=2):
    shapes = {"x": (batch, rows, WIDTH), "keys": (batch, past, WIDTH)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def _agree(ours, theirs, feeds, names=None):
    for a, b in zip(ours.run(names, feeds), theirs.run(names, feeds), strict=True):
        assert type(a) is np.ndarray and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def _both(model):
    content = model.SerializeToString()
    return (
        ontrain.InferenceSession(content, providers=TORCH),
        onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]),
    )


def test_a_decoder_needs_no_plan_for_each_length_of_its_cache(decoder, rng, served):
    ours, theirs = _both(decoder)
    for past in range(100, 130):
        _agree(ours, theirs, _feeds(rng, past))
    assert served[0] == 24  # four plans, and two whose results were compared
    assert len(ours._own._session._planner.plans) == 6


def test_sizes_that_have_a_plan_keep_it(decoder, rng, served):
    ours, theirs = _both(decoder)
    for _ in range(3):
        for past in range(100, 106):
            _agree(ours, theirs, _feeds(rng, past))
    assert not served[0]
    _agree(ours, theirs, _feeds(rng, 300), ["all_keys"])
    assert served[0] == 1


def test_results_that_differ_leave_all_sizes_to_the_provider(decoder, rng, served, monkeypatch):
    wrong = onnx.ModelProto.FromString(decoder.SerializeToString())
    weight = numpy_helper.to_array(wrong.graph.initializer[1])
    wrong.graph.initializer[1].CopyFrom(numpy_helper.from_array(weight * 1.01, "v"))
    usual = HandedOver.of
    monkeypatch.setattr(HandedOver, "of", classmethod(lambda cls, proto, read: usual(proto, lambda: wrong)))
    ours, theirs = _both(decoder)
    for past in range(100, 110):
        _agree(ours, theirs, _feeds(rng, past))
    assert not served[0]


def test_empty_feeds_and_wrong_ones_go_the_usual_way(decoder, rng, served):
    ours, theirs = _both(decoder)
    for past in range(100, 108):
        _agree(ours, theirs, _feeds(rng, past))
    before = served[0]
    _agree(ours, theirs, {**_feeds(rng, 8), "x": np.zeros((2, 0, WIDTH), np.float32)})
    with pytest.raises(ontrain.InputError, match="keys"):
        ours.run(None, {**_feeds(rng, 200), "keys": np.zeros((2, 200, 3), np.float32)})
    with pytest.raises(ontrain.InputError, match="keys"):
        ours.run(None, {"x": _feeds(rng, 200)["x"]})
    assert served[0] == before


def test_products_with_weights_of_few_bits_are_not_rounded_otherwise(decoder, rng, served):
    """accuracy_level 4 lets onnxruntime round what is multiplied to eight bits; the provider does not."""
    quantizer = MatMulNBitsQuantizer(decoder, block_size=32, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    model = quantizer.model.model
    ours = ontrain.InferenceSession(model.SerializeToString(), providers=TORCH)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 1
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for past in range(100, 112):
        _agree(ours, theirs, _feeds(rng, past))
    assert served[0] == 9


@pytest.fixture
def quantised(rng) -> onnx.ModelProto:
    """A product of bytes between numbers, of one size."""
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        layer (float[4, 64] x) => (float[4, 64] y)
        <float scale = {0.02}, uint8 zero = {128}, float fine = {0.01}, int8 none = {0}>
        {
            bytes = QuantizeLinear(x, scale, zero)
            product = QLinearMatMul(bytes, scale, zero, w, fine, none, scale, zero)
            y = DequantizeLinear(product, scale, zero)
        }""")
    weight = rng.integers(-128, 128, (WIDTH, WIDTH)).astype(np.int8)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


def test_a_model_of_bytes_is_one_call_from_the_third_run_on(quantised, rng, served):
    ours, theirs = _both(quantised)
    for run in range(1, 7):
        feeds = {"x": rng.standard_normal((4, WIDTH)).astype(np.float32)}
        np.testing.assert_array_equal(ours.run(None, feeds)[0], theirs.run(None, feeds)[0])
        assert served[0] == max(0, run - 2)


def test_a_tie_goes_the_same_way_in_each_run(quantised, rng, monkeypatch):
    other = onnx.ModelProto.FromString(quantised.SerializeToString())
    other.graph.node[-1].output[0] = "before"
    other.graph.node.append(helper.make_node("Mul", ["before", "factor"], ["y"]))
    other.graph.initializer.append(numpy_helper.from_array(np.float32(1.01), "factor"))
    usual = HandedOver.of
    monkeypatch.setattr(HandedOver, "of", classmethod(lambda cls, proto, read: usual(proto, lambda: other)))
    monkeypatch.setattr(handed_over, "_multiplies_bytes", lambda: True)
    session = ontrain.InferenceSession(quantised.SerializeToString(), providers=TORCH)
    feeds = {"x": rng.standard_normal((4, WIDTH)).astype(np.float32)}
    first, *others = (session.run(None, feeds)[0] for _ in range(5))
    for result in others:
        np.testing.assert_array_equal(result, first)


@pytest.mark.parametrize("exact", [False, True], ids=["saturates", "exact"])
@pytest.mark.parametrize("apart", [0.01, 0.2])
def test_ties_are_all_that_results_of_bytes_may_differ_in(quantised, rng, served, monkeypatch, exact, apart):
    other = onnx.ModelProto.FromString(quantised.SerializeToString())
    other.graph.node[-1].output[0] = "before"
    other.graph.node.append(helper.make_node("Mul", ["before", "factor"], ["y"]))
    other.graph.initializer.append(numpy_helper.from_array(np.float32(1 + apart), "factor"))
    usual = HandedOver.of
    monkeypatch.setattr(HandedOver, "of", classmethod(lambda cls, proto, read: usual(proto, lambda: other)))
    monkeypatch.setattr(handed_over, "_multiplies_bytes", lambda: exact)
    session = ontrain.InferenceSession(quantised.SerializeToString(), providers=TORCH)
    for _ in range(5):
        session.run(None, {"x": rng.standard_normal((4, WIDTH)).astype(np.float32)})
    assert served[0] == (3 if exact and apart < 0.05 else 0)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("join", ["0", "1"])
def test_settings_that_turn_it_off(decoder, rng, served, monkeypatch, level, join):
    monkeypatch.setenv("ONTRAIN_JOIN", join)
    options = ontrain.SessionOptions()
    options.graph_optimization_level = getattr(ontrain.GraphOptimizationLevel, level)
    session = ontrain.InferenceSession(decoder.SerializeToString(), options, providers=TORCH)
    for past in range(100, 108):
        session.run(None, _feeds(rng, past))
    assert served[0] == (2 if (join, level) == ("1", "ORT_ENABLE_ALL") else 0)


@pytest.mark.parametrize("reason", ["it draws", "its sizes are fixed", "its threads write over each other"])
def test_models_that_stay_with_the_provider(reason):
    dims = [2, 3] if "fixed" in reason else ["n", 3]
    x, y = (helper.make_tensor_value_info(name, 1, dims) for name in "xy")
    index = numpy_helper.from_array(np.zeros((1, 1), np.int64), "i")
    node = {
        "it draws": helper.make_node("RandomNormalLike", ["x"], ["y"]),
        "its sizes are fixed": helper.make_node("Exp", ["x"], ["y"]),
    }.get(reason, helper.make_node("ScatterND", ["x", "i", "u"], ["y"], reduction="add"))
    update = numpy_helper.from_array(np.ones((1, 3), np.float32), "u")
    model = helper.make_model(helper.make_graph([node], "small", [x], [y], [index, update]))
    assert HandedOver.of(model, lambda: model) is None


def test_a_sequence_that_is_passed_on_stays_with_the_provider():
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        same (seq(float[n]) x, float[n] a) => (seq(float[n]) y, float[n] b) { y = Identity(x) b = Exp(a) }""")
    session = ontrain.InferenceSession(model.SerializeToString(), providers=TORCH)
    for n in range(1, 9):
        (y, _) = session.run(None, {"x": [np.ones(n, np.float32)], "a": np.ones(n, np.float32)})
        assert y[0].shape == (n,)


def test_threads_share_it(decoder, rng):
    ours, theirs = _both(decoder)
    batches = {past: _feeds(rng, past) for past in range(100, 124)}
    wanted = {past: theirs.run(None, feeds) for past, feeds in batches.items()}
    wrong = []

    def work(start):
        for turn in range(24):
            past = 100 + (start * 7 + turn) % 24
            if not np.allclose(ours.run(None, batches[past])[0], wanted[past][0], rtol=1e-4, atol=1e-5):
                wrong.append(past)

    at_once(*(functools.partial(work, start) for start in range(4)))
    assert not wrong


def _values(feeds):
    return {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}


def _by_values(session, feeds):
    return [value.numpy() for value in session.run_with_ort_values(None, _values(feeds))]


def _by_tensors(session, feeds):
    return [
        tensor.numpy()
        for tensor in session.run_tensors(None, {name: torch.from_numpy(array) for name, array in feeds.items()})
    ]


def _by_binding(session, feeds):
    binding = session.io_binding()
    for name, value in _values(feeds).items():
        binding.bind_ortvalue_input(name, value)
    for name in ("y", "all_keys"):
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()


def _in_thread(session, feeds):
    done: queue.SimpleQueue = queue.SimpleQueue()
    session.run_async(None, feeds, lambda results, _, error: done.put((results, error)), None)
    results, error = done.get(timeout=60)
    assert not error
    return results


@pytest.mark.parametrize("way", [_by_values, _by_tensors, _by_binding, _in_thread])
def test_values_tensors_and_bindings_need_no_plan_for_each_length(decoder, rng, served, way):
    ours, theirs = _both(decoder)
    for past in range(100, 112):
        feeds = _feeds(rng, past)
        for a, b in zip(way(ours, feeds), theirs.run(None, feeds), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert served[0] == 6 and len(ours._own._session._planner.plans) == 6


def test_bound_memory_that_is_read_and_written_holds_the_results(decoder, rng, served):
    ours, theirs = _both(decoder)
    for past in range(100, 112):
        feeds = _feeds(rng, past, rows=past)
        wanted = theirs.run(["y"], feeds)[0]
        memory = onnxruntime.OrtValue.ortvalue_from_numpy(feeds["x"].copy())
        binding = ours.io_binding()
        binding.bind_ortvalue_input("x", memory)
        binding.bind_cpu_input("keys", feeds["keys"])
        binding.bind_ortvalue_output("y", memory)
        ours.run_with_iobinding(binding)
        np.testing.assert_allclose(memory.numpy(), wanted, rtol=1e-4, atol=1e-4)
    assert served[0] == 6


def test_prompts_with_an_empty_cache_need_no_plan_for_each_length(decoder, rng, served):
    ours, theirs = _both(decoder)
    for rows in range(5, 15):
        _agree(ours, theirs, _feeds(rng, 0, rows))
    assert served[0] == 4


def test_an_empty_input_that_is_more_than_joined_stays_with_the_provider(decoder, rng, served):
    decoder.graph.node.append(helper.make_node("ReduceSum", ["keys"], ["sum"]))
    decoder.graph.output.append(helper.make_tensor_value_info("sum", 1, None))
    ours, theirs = _both(decoder)
    for rows in range(5, 15):
        _agree(ours, theirs, _feeds(rng, 0, rows))
    assert not served[0]
