"""Names in bodies and around them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import ontrain
from tests.training.conftest import PROVIDERS


@pytest.mark.parametrize(
    "graph",
    [
        """g (float[2] x, int64 n, bool c) => (float[2] y) {
            k = Neg(x)
            h = Loop(n, c, k) <body = b (int64 i, bool c, float[2] x) => (bool on, float[2] z) {
                on = Identity(c)
                z = Add(x, k)
            }>
            y = Add(h, x)
        }""",
        """g (float[2] x, int64 n, bool c) => (float[2] y) <float[2] w = {5, 5}> {
            h = Loop(n, c, x) <body = b (int64 i, bool c, float[2] w) => (bool on, float[2] z) {
                on = Identity(c)
                z = Loop(n, c, w) <body = d (int64 i, bool c, float[2] w) => (bool in, float[2] v) {
                    in = Identity(c)
                    v = Add(w, w)
                }>
            }>
            y = Add(h, w)
        }""",
        """g (float[2] x, int64 n, bool c) => (float[2] y, float[n, 2] z) {
            y, z = Loop(n, c, x) <body = b (int64 i, bool c, float[2] y) => (bool on, float[2] m, float[2] k) {
                on = Identity(c)
                k = Mul(y, y)
                m = Add(y, k)
            }>
        }""",
    ],
    ids=["inner", "nested", "of the loop's own output"],
)  # fmt: skip
def test_inputs_of_a_body_hide_outer_values_of_their_names(graph):
    """onnxruntime lets them, though the standard asks for names of their own; exporters write such loops."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')
    feeds = {"x": np.array([1.0, 2.0], np.float32), "n": np.array(2), "c": np.array(True)}
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    for provider in PROVIDERS:
        session = ontrain.InferenceSession(proto.SerializeToString(), providers=[provider])
        for result, wanted in zip(session.run(None, feeds), expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-6, err_msg=provider)
