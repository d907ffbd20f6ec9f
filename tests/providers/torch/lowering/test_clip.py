"""Clip with any of its bounds left out."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ontrain import InferenceSession

X = np.array([-3, -1, 0, 2, 5], np.float32)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [(["x"], X), (["x", "", ""], X), (["x", "low"], np.maximum(X, -1)), (["x", "", "high"], np.minimum(X, 2))],
    ids=["none", "both empty", "low", "high"],
)
def test_a_bound_that_is_left_out_clips_nothing(inputs, expected):
    graph = helper.make_graph(
        [helper.make_node("Clip", inputs, ["clipped"]), helper.make_node("Neg", ["clipped"], ["y"])],
        "clip",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("clipped", "y")],
        [
            helper.make_tensor("low", TensorProto.FLOAT, [], [-1]),
            helper.make_tensor("high", TensorProto.FLOAT, [], [2]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    clipped, y = InferenceSession(model.SerializeToString(), providers=["TorchExecutionProvider"]).run(None, {"x": X})
    np.testing.assert_array_equal(clipped, expected)
    np.testing.assert_array_equal(y, -expected)
