"""Outputs that are inputs or are listed twice, and outputs without a type: onnxruntime is the oracle."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import ontrain
from tests.training.conftest import PROVIDERS

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
FILES = {
    "one plan": "g (float[n, 3] x) => (float[n, 3] x, float[n, 3] y) { y = Relu(x) }",
    "in steps": "g (float[n, 3] x) => (int64[2, k] y, float[n, 3] x) { y = NonZero(x) }",
    "nothing else": "g (float[n, 3] x) => (float[n, 3] x) { y = Relu(x) }",
    "a name like a copy's": "g (float[n, 3] x) => (float[n, 3] x, float[n, 3] x_copy) { x_copy = Relu(x) }",
    "twice": "g (float[n, 3] x) => (float[n, 3] y, float[n, 3] z, float[n, 3] y) { y = Relu(x)  z = Neg(y) }",
    "twice in steps": "g (float[n, 3] x) => (int64[2, k] y, float[n, 3] x, int64[2, k] y, float[n, 3] x) "
    "{ y = NonZero(x) }",
    "a constant twice": "g (float[n, 3] x) => (float[2] w, float[n, 3] y, float[2] w) <float[2] w = {1, 2}> "
    "{ y = Relu(x) }",
}


def model(name):
    return onnx.parser.parse_model(HEAD + FILES[name])


def stock(content):
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("name", FILES)
def test_an_output_that_is_an_input_or_another_output_keeps_its_name(name, provider, rng):
    content, x = model(name).SerializeToString(), rng.standard_normal((2, 3)).astype(np.float32)
    theirs, ours = stock(content), ontrain.InferenceSession(content, providers=[provider])
    names = [value.name for value in theirs.get_outputs()]
    assert [value.name for value in ours.get_outputs()] == names
    expected = theirs.run(None, {"x": x})
    alone = [ours.run([name], {"x": x})[0] for name in names]
    for results in (ours.run(None, {"x": x}), alone):
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("name", FILES)
def test_the_optimised_file_keeps_the_names_of_such_outputs(name, tmp_path, rng):
    options, x = ontrain.SessionOptions(), rng.standard_normal((2, 3)).astype(np.float32)
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ontrain.InferenceSession(model(name), options, providers=["TorchExecutionProvider"])
    written, theirs = stock(str(tmp_path / "optimised.onnx")), stock(model(name).SerializeToString())
    assert [value.name for value in written.get_outputs()] == [value.name for value in theirs.get_outputs()]
    for result, wanted in zip(written.run(None, {"x": x}), theirs.run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_output_without_a_type_in_the_file_has_the_one_that_is_inferred(provider, rng):
    proto = onnx.parser.parse_model(
        HEAD + "g (float[n, 3] x) => (float[1] y, int32[1] z) { y = Neg(x)  z = Cast<to = 6>(y) }"
    )
    for output in proto.graph.output:
        output.ClearField("type")
    theirs, ours = stock(proto.SerializeToString()), ontrain.InferenceSession(proto, providers=[provider])
    told = [[(value.type, value.shape) for value in session.get_outputs()] for session in (ours, theirs)]
    assert told[0] == told[1] == [("tensor(float)", ["n", 3]), ("tensor(int32)", ["n", 3])]
    x = rng.standard_normal((2, 3)).astype(np.float32)
    for result, wanted in zip(ours.run(None, {"x": x}), theirs.run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(result, wanted)
