"""Batch normalisations and dropouts of a file in the form for training, and in the one for inference."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes.common import NameFixPass

from ontrain.capture.onnx_file.modes import to_inference, to_training
from ontrain.graph import Role, set_role, updates_of

_NORMALISATIONS = """<ir_version: 10, opset_import: ["" : 23]>
twice (float[6, 3] x, float[3] scale, float[3] bias, float[3] mean, float[3] variance) => (float[6, 3] y) {
    h = BatchNormalization <epsilon = 0.001, momentum = 0.75> (x, scale, bias, mean, variance)
    moved = Mul(h, x)
    y = BatchNormalization <epsilon = 0.001, momentum = 0.75> (moved, scale, bias, mean, variance)
}"""
_DROPOUT = """<ir_version: 10, opset_import: ["" : 23]>
drops (float[8, 8] x) => (float[8, 8] y) <float ratio = {0.5}, bool on = {1}> {
    y = Dropout(x, ratio, on)
}"""


def test_normalisations_that_share_statistics_update_them_one_after_the_other(rng):
    model = ir.from_proto(onnx.parser.parse_model(_NORMALISATIONS))
    for name in ("mean", "variance"):
        set_role(next(value for value in model.graph.inputs if value.name == name), Role.BUFFER)
    to_training(model.graph, frozen=())
    assert [updates_of(value) for value in model.graph.outputs] == [None, "mean", "variance"]
    for value in model.graph.outputs[1:]:
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([3])
    feeds = {value.name: rng.standard_normal(value.shape.numpy()).astype(np.float32) for value in model.graph.inputs}
    named = NameFixPass()(model)
    _, mean, variance = ReferenceEvaluator(ir.to_proto(named.model)).run(None, feeds)

    def normalised(x):
        centred = (x - x.mean(0)) / np.sqrt(x.var(0) + 0.001)
        return centred * feeds["scale"] + feeds["bias"]

    expected_mean, expected_variance = feeds["mean"], feeds["variance"]
    for x in (feeds["x"], normalised(feeds["x"]) * feeds["x"]):
        expected_mean = 0.75 * expected_mean + 0.25 * x.mean(0)
        expected_variance = 0.75 * expected_variance + 0.25 * x.var(0)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-5)
    np.testing.assert_allclose(variance, expected_variance, rtol=1e-5)


def test_a_dropout_that_a_file_turns_on_passes_everything_in_inference(rng):
    model = ir.from_proto(onnx.parser.parse_model(_DROPOUT))
    to_inference(model.graph)
    x = rng.standard_normal((8, 8)).astype(np.float32)
    (y,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
    np.testing.assert_array_equal(y, x)
