"""Inputs of a file that are axes or sizes of its operators: a plan for each of their values."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper
import onnxruntime
import pytest

import ontrain
from tests.training.conftest import PROVIDERS

CASES = {
    "ReduceSum": [[0], [1], [0, 1]],
    "Tile": [[2, 1], [1, 3]],
    "TopK": [[2], [1]],
    "Unsqueeze": [[0], [1]],
    "CenterCropPad": [[2, 2], [5, 3]],
}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("op_type", CASES)
def test_axes_and_sizes_may_be_fed(op_type, provider, rng):
    values = CASES[op_type]
    outputs = ["y", "places"][: 2 if op_type == "TopK" else 1]
    make = onnx.helper
    node = make.make_node(op_type, ["x", "setting"], outputs)
    tensors = [make.make_tensor_value_info("x", 1, [3, 4]), make.make_tensor_value_info("setting", 7, ["n"])]
    results = [make.make_tensor_value_info(name, 7 if name == "places" else 1, None) for name in outputs]
    graph = make.make_graph([node], "fed", tensors, results)
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 18)], ir_version=8).SerializeToString()
    session, stock = ontrain.InferenceSession(model, providers=[provider]), onnxruntime.InferenceSession(model)
    x = rng.standard_normal((3, 4), np.float32)
    for value in [*values, *values]:
        feeds = {"x": x, "setting": np.array(value, np.int64)}
        for ours, theirs in zip(session.run(None, feeds), stock.run(None, feeds), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
