"""Recurrent layers of files, step by step, as onnxruntime's."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.providers.torch.lowering.files import assert_as_onnxruntime, calls, file_of

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
INPUT, HIDDEN = 5, 4


def layer(rng, kind, direction="forward", *, batch=1, steps=6, bias=True, states=True, length=None, **attributes):
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
        fed["length"] = np.array([length], np.int32)
    inputs = ["x", "w", "r", "b" if bias else "", "" if length is None else "length", *names]
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


@pytest.mark.parametrize("kind", GATES)
def test_one_sequence_takes_no_loop_and_no_kernel_that_rearranges_weights(rng, kind):
    names = calls(assert_as_onnxruntime(*layer(rng, kind), rtol=1e-5, atol=2e-6))
    assert f"_{kind.lower()}" in names and "_run_loop" not in names and "_forward" not in names


@pytest.mark.parametrize("sizes", [{"steps": 9}, {"batch": 2}])
def test_an_lstm_of_many_steps_or_sequences_takes_the_kernel_of_the_layer(rng, sizes):
    names = calls(assert_as_onnxruntime(*layer(rng, "LSTM", **sizes), rtol=1e-5, atol=2e-6))
    assert "_forward" in names and "_lstm" not in names


def test_other_activations_run_by_the_operators_body(rng):
    model, fed = layer(rng, "RNN", activations=["Relu"])
    names = calls(assert_as_onnxruntime(model, fed, rtol=1e-5, atol=2e-6))
    assert "_rnn" not in names and "clamp_min" in names
