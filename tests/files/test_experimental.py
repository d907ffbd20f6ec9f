"""Operators of the standard's domain that only onnxruntime knows."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import ontrain
from tests.training.conftest import PROVIDERS


def run_twice(content, feeds, provider):
    sessions = (
        onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]),
        ontrain.InferenceSession(content, providers=[provider]),
    )
    return [session.run(None, feeds) for session in sessions]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("opset", [9, 14, 17, 23])
def test_a_simplified_layer_normalisation_of_any_opset(provider, opset):
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
    g (float[n, 3, 4] x, float[4] w) => (float[n, 3, 4] y, float[n, 3, 1] inverse) {{
        y, inverse = SimplifiedLayerNormalization<axis = -1, epsilon = 0.01>(x, w)
    }}"""
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((2, 3, 4)).astype(np.float32), "w": rng.standard_normal(4).astype(np.float32)}
    theirs, ours = run_twice(onnx.parser.parse_model(text).SerializeToString(), feeds, provider)
    for wanted, got in zip(theirs, ours, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_file_in_which_onnxruntimes_optimiser_found_a_root_mean_square(provider, tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 3, 4] x) => (float[n, 3, 4] y) <float two = {2}, float small = {0.01}, float[4] w = {1, 2, -1, 0.5}> {
        squares = Pow(x, two)
        mean = ReduceMean<axes = [-1], keepdims = 1>(squares)
        more = Add(mean, small)
        root = Sqrt(more)
        unit = Div(x, root)
        y = Mul(w, unit)
    }"""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(
        onnx.parser.parse_model(text).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    content = (tmp_path / "optimised.onnx").read_bytes()
    (node,) = onnx.load_model_from_string(content).graph.node
    assert node.op_type == "SimplifiedLayerNormalization"
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)}
    theirs, ours = run_twice(content, feeds, provider)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_such_an_operator_may_have_attributes_of_any_name(provider):
    text = """<ir_version: 4, opset_import: ["" : 8]>
    g (float[n, 3] x) => (float[n, 3] y) { y = Affine<alpha = 2.0, beta = 1.0, consumed_inputs = [0]>(x) }"""
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    theirs, ours = run_twice(onnx.parser.parse_model(text).SerializeToString(), feeds, provider)
    np.testing.assert_array_equal(ours[0], theirs[0])
