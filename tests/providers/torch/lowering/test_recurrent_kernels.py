"""Recurrent layers of files by onnxruntime's kernels: its numbers, whoever calls and whatever changes."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ontrain
from ontrain.passes import expand_recurrent
from ontrain.providers.torch.lowering import recurrent_kernels
from tests.providers.torch.lowering.files import assert_as_onnxruntime, calls, file_of

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
INPUT, HIDDEN = 5, 4


def layer(rng, kind, direction="forward", *, batch=1, steps=6, bias=True, states=True, length=None, peepholes=False,
          **attributes):  # fmt: skip
    """A file of a layer, and feeds for it."""
    width, count = GATES[kind] * HIDDEN, 1 + (direction == "bidirectional")

    def random(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    weights = {"w": random(count, width, INPUT), "r": random(count, width, HIDDEN)}
    if bias:
        weights["b"] = random(count, 2 * width)
    names = (["h", "c"] if kind == "LSTM" else ["h"]) if states else []
    fed = {"x": random(steps, batch, INPUT), **{name: random(count, batch, HIDDEN) for name in names}}
    if length is not None:
        fed["length"] = np.atleast_1d(np.array(length, np.int32))
    inputs = ["x", "w", "r", "b" if bias else "", "" if length is None else "length", *names]
    if peepholes:
        weights["p"] = random(count, 3 * HIDDEN)
        inputs += [*[""] * (7 - len(inputs)), "p"]
    outputs = ["y", "last", *(["cell"] if kind == "LSTM" else [])]
    node = helper.make_node(kind, inputs, outputs, hidden_size=HIDDEN, direction=direction, **attributes)
    return file_of([node], fed, weights, outputs), fed


@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_a_layer(rng, kind, direction, batch, steps):
    assert_as_onnxruntime(*layer(rng, kind, direction, batch=batch, steps=steps), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("bias, states", [(False, True), (True, False), (False, False)])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", GATES)
def test_biases_and_first_states_may_be_missing(rng, kind, batch, bias, states):
    model, fed = layer(rng, kind, "bidirectional", batch=batch, bias=bias, states=states)
    assert_as_onnxruntime(model, fed, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_a_gru_that_multiplies_before_it_resets(rng, bias, batch):
    model, fed = layer(rng, "GRU", "bidirectional", batch=batch, bias=bias, linear_before_reset=1)
    assert_as_onnxruntime(model, fed, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("length", [1, 4, 6])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_beyond_the_length_of_the_sequence_there_are_zeros(rng, kind, direction, length):
    assert_as_onnxruntime(*layer(rng, kind, direction, length=length), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("steps", [1, 40])
@pytest.mark.parametrize("kind", GATES)
def test_a_layer_is_one_call(rng, kind, steps):
    names = calls(assert_as_onnxruntime(*layer(rng, kind, "bidirectional", steps=steps), rtol=1e-5, atol=2e-6))
    assert names.count(f"onnxruntime_{kind}") == 1 and "_run_loop" not in names and "_forward" not in names


@pytest.mark.parametrize("kind, batch, whole", [("LSTM", 9, True), ("LSTM", 80, True), ("GRU", 9, True),
                                                ("GRU", 80, False), ("RNN", 9, False)])  # fmt: skip
def test_a_layer_of_large_steps_is_one_call_where_there_is_one_thread(rng, threads, monkeypatch, kind, batch, whole):
    monkeypatch.setattr(recurrent_kernels, "_SMALL", 0)
    monkeypatch.setattr(expand_recurrent, "_FEW", 0)
    names = calls(assert_as_onnxruntime(*layer(rng, kind, batch=batch), rtol=1e-5, atol=2e-6))
    assert (f"onnxruntime_{kind}" in names) == (whole and threads == 1)


@pytest.mark.parametrize("kind", GATES)
def test_weights_may_be_fed(rng, kind):
    model, fed = layer(rng, kind, "bidirectional", batch=2)
    held = {i.name: numpy_helper.to_array(i) for i in onnx.load_from_string(model).graph.initializer}
    node = onnx.load_from_string(model).graph.node[0]
    model = file_of([node], {**fed, **held}, {}, node.output)
    session = assert_as_onnxruntime(model, {**fed, **held}, rtol=1e-5, atol=2e-6)
    held["r"] = -held["r"]
    wanted = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {**fed, **held})
    for a, b in zip(session.run(None, {**fed, **held}), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("kind", GATES)
def test_two_layers_with_other_attributes_share_weights_and_no_kernel(rng, kind):
    model, fed = layer(rng, kind, states=False)
    (node,) = onnx.load_from_string(model).graph.node
    held = {i.name: numpy_helper.to_array(i) for i in onnx.load_from_string(model).graph.initializer}
    other = onnx.NodeProto()
    other.CopyFrom(node)
    next(a for a in other.attribute if a.name == "direction").s = b"reverse"
    other.output[:] = ["z"]
    model = file_of([node, other], fed, held, [node.output[0], "z"])
    assert_as_onnxruntime(model, fed, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("kind", GATES)
def test_threads_get_their_own_results(rng, kind):
    model, fed = layer(rng, kind, "bidirectional", steps=12)
    feeds = [{name: a + np.float32(at / 8) for name, a in fed.items()} for at in range(8)]
    stock = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    wanted = [stock.run(None, feed)[0] for feed in feeds]
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])
    with ThreadPoolExecutor(8) as threads:
        for at, got in threads.map(lambda at: (at % 8, session.run(None, feeds[at % 8])[0]), range(400)):
            np.testing.assert_allclose(got, wanted[at], rtol=1e-5, atol=2e-6)


def test_a_child_process_goes_on(rng):
    model, fed = layer(rng, "GRU", "bidirectional")
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])
    wanted = session.run(None, fed)[0]
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=lambda: results.put(session.run(None, fed)[0]))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    np.testing.assert_array_equal(results.get(), wanted)


@pytest.mark.parametrize("kind", GATES)
def test_a_length_that_no_sequence_has_is_refused(rng, kind):
    model, fed = layer(rng, kind, length=9)
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])
    with pytest.raises(ValueError, match=rf"onnxruntime's kernel of {kind} refuses"):
        session.run(None, fed)


STATED = {"LSTM": ["Tanh", "Relu", "Relu"], "GRU": ["HardSigmoid", "Softsign"], "RNN": ["Relu"]}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_a_layer_with_other_activations_is_one_call(rng, kind, direction, batch):
    stated = STATED[kind] * (1 + (direction == "bidirectional"))
    model, fed = layer(rng, kind, direction, batch=batch, steps=3, activations=stated)
    names = calls(assert_as_onnxruntime(model, fed, rtol=1e-5, atol=2e-6))
    assert [name for name in names if "onnxruntime" in name] == [f"onnxruntime_{kind}"]


@pytest.mark.parametrize("stated", [
    {"activations": ["Elu"]}, {"activations": ["LeakyRelu"], "activation_alpha": [0.1]},
])  # fmt: skip
def test_activations_with_numbers_run_by_the_operators_body(rng, stated):
    model, fed = layer(rng, "RNN", **stated)
    names = calls(assert_as_onnxruntime(model, fed, rtol=1e-5, atol=2e-6))
    assert "onnxruntime_RNN" not in names


@pytest.mark.sampled(4)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("kind, stated", [
    ("LSTM", {"peepholes": True}), ("LSTM", {"peepholes": True, "clip": 0.4}), ("LSTM", {"input_forget": 1}),
    *((kind, {"clip": 0.4}) for kind in GATES), *((kind, {"length": [2, 6, 1]}) for kind in GATES),
    ("LSTM", {"length": [4, 1, 6], "peepholes": True, "clip": 0.7, "input_forget": 1}),
])  # fmt: skip
def test_a_layer_with_peepholes_bounds_or_lengths_is_one_call(rng, kind, stated, states, direction, batch):
    stated = {**stated, "length": stated["length"][:batch]} if "length" in stated else stated
    model, fed = layer(rng, kind, direction, batch=batch, states=states, **stated)
    names = calls(assert_as_onnxruntime(model, fed, rtol=1e-5, atol=2e-6))
    assert [name for name in names if "onnxruntime" in name] == [f"onnxruntime_{kind}"]


def _quantised(rng, direction, per_column, biased, signed):
    count = 2 if direction == "bidirectional" else 1
    kind = np.int8 if signed else np.uint8
    # Beyond, onnxruntime's kernels for processors without VNNI lose what does not fit into 16 bits.
    low, high = (-63, 64) if signed else (0, 256)
    arrays = {
        "w": rng.integers(low, high, (count, 6, 4 * 8)).astype(kind),
        "r": rng.integers(low, high, (count, 8, 4 * 8)).astype(kind),
        "b": rng.standard_normal((count, 8 * 8)).astype(np.float32),
        "scale": rng.uniform(0.004, 0.01, (count, 4 * 8) if per_column else (count,)).astype(np.float32),
    }
    arrays["zero"] = np.full_like(arrays["scale"], 0 if signed else 128, kind)
    names = ["x", "w", "r", "b" if biased else "", "", "h", "c", "", "scale", "zero", "scale", "zero"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, ["y", "y_h", "y_c"], domain="com.microsoft", hidden_size=8,
        direction=direction,
    )  # fmt: skip

    def tensor(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        [node], "layer", [tensor("x", 60, 2, 6), *(tensor(n, count, 2, 8) for n in "hc")],
        [tensor("y", 60, count, 2, 8), *(tensor(n, count, 2, 8) for n in ("y_h", "y_c"))],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if biased or name != "b"],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.mark.parametrize("signed", [True, False], ids=["int8", "uint8"])
@pytest.mark.parametrize("per_column", [False, True], ids=["one scale", "a scale a column"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_quantised_weights_give_onnxruntimes_numbers(direction, per_column, signed, rng):
    model = _quantised(rng, direction, per_column, direction != "reverse", signed)
    count = 2 if direction == "bidirectional" else 1
    fed = {"x": 3 * rng.standard_normal((60, 2, 6)).astype(np.float32)}
    fed |= {name: rng.standard_normal((count, 2, 8)).astype(np.float32) for name in "hc"}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # each thread would quantise the states of its own sequences
    wanted = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"]).run(None, fed)
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])
    for ours, theirs in zip(session.run(None, fed), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
