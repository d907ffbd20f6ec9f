"""Sums and products of quantised tensors that lie between two whole numbers round as onnxruntime rounds them."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import ontrain


def file_of(op_type, dtype, zeros, scales):
    """One node on inputs a and b; `scales` and `zeros` are of a, of b and of the result."""
    names = ("a", "b", "y")
    numbers = {f"{name}_scale": np.float32(scale) for name, scale in zip(names, scales, strict=True)}
    numbers |= {f"{name}_zero": dtype(zero) for name, zero in zip(names, zeros, strict=True)}
    operands = ["a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "y_scale", "y_zero"]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    values = [helper.make_tensor_value_info(name, kind, [256]) for name in names]
    node = helper.make_node(op_type, operands, ["y"], domain="com.microsoft")
    weights = [numpy_helper.from_array(np.asarray(number), name) for name, number in numbers.items()]
    graph = helper.make_graph([node], "one node", values[:2], values[2:], weights)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString()


@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize(
    ("dtype", "zeros"), [(np.int8, (0, -128, -128)), (np.uint8, (128, 3, 7)), (np.int8, (1, 2, 5))]
)
@pytest.mark.parametrize("scales", [(2 / 255, 1 / 255, 2 / 255), (0.1, 0.05, 0.1), (0.5, 0.25, 1.0)])
def test_ties_round_as_onnxruntimes_do(op_type, dtype, zeros, scales, rng):
    model = file_of(op_type, dtype, zeros, scales)
    limits = np.iinfo(dtype)
    feeds = {name: rng.integers(limits.min, limits.max + 1, 256).astype(dtype) for name in ("a", "b")}
    (wanted,) = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    (result,) = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"]).run(None, feeds)
    np.testing.assert_array_equal(result, wanted)
