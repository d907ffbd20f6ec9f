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


@pytest.mark.parametrize(
    "graph",
    [
        """g (float[2] x, bool c) => (float[n] y) {
            y = If(c) <then_branch = t () => (float[2] w) <float[2] w = {1, 2}> {},
                       else_branch = e () => (float[3] w) <float[3] w = {3, 4, 5}> {}>
        }""",
        """g (float[2] x, bool c) => (float[2] y, float[n, 2] z) {
            count = Constant<value = int64 {3}>()
            y, z = Loop(count, c, x) <body = b (int64 i, bool go, float[2] v) => (bool on, float[2] sum, float[2] w)
                <bool on = {1}, float[2] w = {1, 2}> { sum = Add(v, w) }>
        }""",
        """g (float[2] x, bool c) => (float[2] y, float[n] z) {
            parts = SequenceConstruct(x, x)
            own, negated = SequenceMap(parts) <body = b (float[k] v) => (float[2] w, float[k] n)
                <float[2] w = {1, 2}> { n = Neg(v) }>
            zero = Constant<value = int64 {0}>()
            y = SequenceAt(own, zero)
            z = SequenceAt(negated, zero)
        }""",
    ],
    ids=["branch", "body", "of a sequence"],
)  # fmt: skip
@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_graph_inside_may_give_an_initializer_of_its_own(graph, condition, provider):
    """torch's exporter writes a bag of embeddings like this: a branch gives zeros for an empty bag."""
    content = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}').SerializeToString()
    feeds = {"x": np.array([1.0, 2.0], np.float32), "c": np.array(condition)}
    theirs, ours = (
        module.InferenceSession(content, providers=[name])
        for module, name in ((onnxruntime, "CPUExecutionProvider"), (ontrain, provider))
    )
    taken = {value.name for value in theirs.get_inputs()}
    feeds = {name: fed for name, fed in feeds.items() if name in taken}
    for wanted, result in zip(theirs.run(None, feeds), ours.run(None, feeds), strict=True):
        np.testing.assert_array_equal(result, wanted)
