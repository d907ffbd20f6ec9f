"""Recurrent layers of files, step by step: those that are too large for one thread, and those of double precision."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import ontrain
from tests.providers.torch.lowering.files import assert_as_onnxruntime, calls, file_of

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
INPUT, HIDDEN, BATCH = 5, 240, 12
DIRECTIONS = ("forward", "reverse", "bidirectional")


@pytest.fixture(autouse=True)
def several_threads():
    """On one thread a layer of so few sequences is left to onnxruntime's kernel, unless it is a plain one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def large(rng, kind, direction, *, bias=True, states=True, length=False, steps=4, dtype=np.float32, **attributes):
    """A file of a layer of many and wide sequences, and feeds for it."""
    width, count = GATES[kind] * HIDDEN, 1 + (direction == "bidirectional")

    def random(*shape, scale=1.0):
        return (scale * rng.standard_normal(shape)).astype(dtype)

    weights = {"w": random(count, width, INPUT), "r": random(count, width, HIDDEN, scale=HIDDEN**-0.5)}
    if bias:
        weights["b"] = random(count, 2 * width)
    names = (["h", "c"] if kind == "LSTM" else ["h"]) if states else []
    fed = {"x": random(steps, BATCH, INPUT), **{name: random(count, BATCH, HIDDEN) for name in names}}
    if length:
        fed["length"] = np.full(BATCH, steps, np.int32)
    outputs = ["y", "last", *(["cell"] if kind == "LSTM" else [])]
    inputs = ["x", "w", "r", "b" if bias else "", "length" if length else "", *names]
    node = helper.make_node(kind, inputs, outputs, hidden_size=HIDDEN, direction=direction, **attributes)
    return node, fed, weights, outputs


@pytest.mark.parametrize("bias, states", [(True, True), (False, True), (True, False), (False, False)])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", GATES)
def test_a_large_layer(rng, kind, direction, bias, states):
    node, fed, weights, outputs = large(rng, kind, direction, bias=bias, states=states)
    names = calls(assert_as_onnxruntime(file_of([node], fed, weights, outputs), fed, rtol=1e-4, atol=1e-5))
    assert f"onnxruntime_{kind}" not in names and ("_forward" if kind == "LSTM" else f"_{kind.lower()}") in names


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_large_gru_that_multiplies_before_it_resets(rng, direction, bias):
    node, fed, weights, outputs = large(rng, "GRU", direction, bias=bias, linear_before_reset=1)
    names = calls(assert_as_onnxruntime(file_of([node], fed, weights, outputs), fed, rtol=1e-4, atol=1e-5))
    assert "_gru" in names


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_double_precision_agrees_with_the_reference_to_the_last_digits(rng, kind, direction):
    node, fed, weights, outputs = large(rng, kind, direction, dtype=np.float64)
    model = file_of([node], fed, weights, outputs)
    model = onnx.load_from_string(model)
    for value in model.graph.output:
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    wanted, got = (
        ontrain.InferenceSession(model.SerializeToString(), providers=[f"{provider}ExecutionProvider"]).run(None, fed)
        for provider in ("Reference", "Torch")
    )
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
