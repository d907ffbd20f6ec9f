"""Sequences that a file makes only to take tensors out of them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from ontrain import GraphError
from ontrain.capture import load_onnx
from ontrain.training import ORTTrainer, ORTTrainerOptions, optim

HEAD = '<ir_version: 8, opset_import: ["" : 18]> g (float[n, 6] x) => (float[n, m] y)'
WEIGHTS = [1, 2, -1, 0.5, 3, -2]
WEIGHT = "float[6] w = {1, 2, -1, 0.5, 3, -2}"
TIMES_X = "a = Mul(x, w)"

FILES = {
    "parts of a size": f"""{HEAD} <{WEIGHT}, int64 size = {{4}}, int64 zero = {{0}}, int64 one = {{1}}> {{
        {TIMES_X}
        parts = SplitToSequence <axis = 1> (a, size)
        first = SequenceAt(parts, zero)
        last = SequenceAt(parts, one)
        y = Concat <axis = 1> (last, first, last)
    }}""",
    "parts of sizes": f"""{HEAD} <{WEIGHT}, int64[3] sizes = {{1, 3, 2}}, int64 one = {{1}}, int64 end = {{-1}}> {{
        {TIMES_X}
        parts = SplitToSequence <axis = -1> (a, sizes)
        middle = SequenceAt(parts, one)
        last = SequenceAt(parts, end)
        y = Concat <axis = 1> (last, middle)
    }}""",
    "single columns": f"""{HEAD} <{WEIGHT}, int64 two = {{2}}, int64 end = {{-1}}> {{
        {TIMES_X}
        parts = SplitToSequence <axis = 1> (a)
        third = SequenceAt(parts, two)
        last = SequenceAt(parts, end)
        y = Concat <axis = 1> (third, last, third)
    }}""",
    "vectors": f"""{HEAD} <{WEIGHT}, int64 two = {{2}}, int64[1] one = {{1}}> {{
        {TIMES_X}
        parts = SplitToSequence <axis = 1, keepdims = 0> (a)
        vector = SequenceAt(parts, two)
        y = Unsqueeze(vector, one)
    }}""",
    "parts of parts": f"""{HEAD} <float[n, 6] a, {WEIGHT}, int64[2] sizes = {{1, 2}}> {{
        {TIMES_X}
        size = Constant <value = int64 {{3}}> ()
        parts = SplitToSequence <axis = -1, keepdims = 1> (a, size)
        one = Constant <value = int64 {{1}}> ()
        right = SequenceAt(parts, one)
        smaller = SplitToSequence <axis = 1> (right, sizes)
        y = SequenceAt(smaller, one)
    }}""",
    "rows of a batch": f"""{HEAD} <{WEIGHT}, int64 size = {{2}}, int64 zero = {{0}}, int64 one = {{1}}> {{
        {TIMES_X}
        parts = SplitToSequence <axis = 0> (a, size)
        first = SequenceAt(parts, zero)
        second = SequenceAt(parts, one)
        y = Concat <axis = 0> (second, first)
    }}""",
    "what was put in": f"""{HEAD} <{WEIGHT}, int64 one = {{1}}> {{
        {TIMES_X}
        tensors = SequenceConstruct(x, a)
        b = SequenceAt(tensors, one)
        all = ConcatFromSequence <axis = 1> (tensors)
        y = Concat <axis = 1> (all, b)
    }}""",
    "stacked": f"""{HEAD} <{WEIGHT}, int64[2] shape = {{-1, 12}}> {{
        {TIMES_X}
        tensors = SequenceConstruct(x, a)
        all = ConcatFromSequence <axis = 1, new_axis = 1> (tensors)
        y = Reshape(all, shape)
    }}""",
}


@pytest.mark.parametrize("kind", FILES)
def test_results_and_derivatives_are_onnxruntimes(kind, rng):
    model = onnx.parser.parse_model(FILES[kind])
    description = {
        "inputs": [("x", ["n", 6]), ("factor", ["n", "m"])],
        "outputs": [("loss", [], True), ("y", ["n", "m"])],
    }
    options, config = ORTTrainerOptions({"utils": {"grad_norm_clip": False}}), optim.SGDConfig(lr=1.0)
    for rows in (4, 3):
        trainer = ORTTrainer(model, description, config, loss_fn=lambda y, factor: (y * factor).sum(), options=options)
        x = rng.standard_normal((rows, 6)).astype(np.float32)
        result = stock_result(model, x)
        factor = rng.standard_normal(result.shape).astype(np.float32)
        _, y = trainer.train_step(torch.from_numpy(x), torch.from_numpy(factor))
        np.testing.assert_array_equal(y.numpy(), result)
        step = np.array(WEIGHTS) - trainer.state_dict()["model"]["full_precision"]["w"].numpy()
        # y is linear in each weight: the derivative is what onnxruntime gives for a weight that is larger by 1.
        slopes = [((stock_result(model, x, column) - result) * factor).sum() for column in range(6)]
        np.testing.assert_allclose(step, slopes, rtol=1e-5, atol=1e-5)


def stock_result(model, x, raised=None):
    """What onnxruntime computes, with one of the weights raised by 1."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    (tensor,) = [t for t in model.graph.initializer if t.name == "w"]
    weights = np.array(WEIGHTS, np.float32) + (np.arange(6) == raised)
    tensor.CopyFrom(onnx.numpy_helper.from_array(weights.astype(np.float32), "w"))
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )[0]


def test_a_place_beyond_the_sequence_is_refused():
    model = onnx.parser.parse_model(FILES["parts of sizes"].replace("end = {-1}", "end = {3}"))
    with pytest.raises(GraphError, match="tensor 3 is asked of a sequence of 3"):
        load_onnx(model)


def test_a_sequence_that_is_measured_is_refused_as_before():
    model = onnx.parser.parse_model(f"""{HEAD} <{WEIGHT}> {{
        {TIMES_X}
        parts = SplitToSequence <axis = 1> (a)
        length = SequenceLength(parts)
        real = Cast <to = 1> (length)
        y = Mul(a, real)
    }}""")
    with pytest.raises(GraphError, match="gives no dense tensor"):
        load_onnx(model)
