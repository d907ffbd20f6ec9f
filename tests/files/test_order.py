"""Nodes may stand in any order in a file: onnxruntime sorts them, and its converter to float16 appends casts."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import ontrain
from ontrain.capture import load_onnx
from ontrain.files import in_order
from tests.training.conftest import PROVIDERS

GRAPH = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[n, 2] x, bool deep) => (float[n, 2] y) <float[2, 2] w = {1, -2, 3, 4}> {
    y = Add(z, k)
    z = If(deep) <
        then_branch = then () => (float[n, 2] t) { u = Mul(h, h)  t = Neg(u) },
        else_branch = other () => (float[n, 2] e) { e = Identity(h) }
    >
    h = MatMul(x, w)
    k = own.twice(h)
}
<domain: "own", opset_import: ["" : 17]>
twice (a) => (c) { c = Add(a, a) }"""
X = np.array([[1.0, -2.0], [3.0, 0.5]], np.float32)


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", *PROVIDERS])
@pytest.mark.parametrize("deep", [False, True])
def test_a_file_out_of_order_runs_as_on_onnxruntime(provider, deep):
    model = onnx.parser.parse_model(GRAPH)
    feeds = {"x": X, "deep": np.array(deep)}
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    (y,) = ontrain.InferenceSession(model, providers=[provider]).run(None, feeds)
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_nodes_keep_their_order_where_nothing_asks_for_another():
    model = onnx.parser.parse_model(GRAPH)
    before = model.SerializeToString(deterministic=True)
    ordered = in_order(model)
    assert [node.output[0] for node in ordered.graph.node] == ["h", "z", "k", "y"]
    assert model.SerializeToString(deterministic=True) == before
    assert in_order(ordered) is ordered


def test_a_file_out_of_order_trains():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 2] x) => (float loss) <float[2, 2] w = {1, -2, 3, 4}> {
        loss = ReduceMean<keepdims = 0>(squares)
        squares = Mul(h, h)
        h = MatMul(x, w)
    }""")
    trained = load_onnx(model)
    assert trained.trainable == ["w"]
