"""Whole numbers without a sign, for which torch has next to no kernels."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import ontrain


def model(op_type: str, dtype: type[np.generic], result: np.dtype, **attributes: object) -> onnx.ModelProto:
    """One operator on two matrices."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    values = [helper.make_tensor_value_info(name, kind, [None, None]) for name in "xy"]
    output = helper.make_tensor_value_info("z", helper.np_dtype_to_tensor_dtype(np.dtype(result)), None)
    graph = helper.make_graph([helper.make_node(op_type, ["x", "y"], ["z"], **attributes)], "g", values, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run(file: onnx.ModelProto, **feeds: np.ndarray) -> np.ndarray:
    session = ontrain.InferenceSession(file.SerializeToString(), providers=["TorchExecutionProvider"])
    return session.run(None, feeds)[0]


OPERATORS = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.floor_divide, "Mod": np.remainder,
    "Less": np.less, "GreaterOrEqual": np.greater_equal, "Equal": np.equal, "Max": np.maximum, "Min": np.minimum,
    "BitwiseAnd": np.bitwise_and, "BitwiseXor": np.bitwise_xor, "Concat": lambda x, y: np.concatenate([x, y], 1),
}  # fmt: skip


@pytest.mark.parametrize("op_type", OPERATORS)
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_numbers_without_a_sign_wrap_around_and_compare_as_numpys(op_type, dtype, rng):
    x = rng.integers(0, np.iinfo(dtype).max, (3, 4), dtype, endpoint=True)
    y = rng.integers(1, np.iinfo(dtype).max, (3, 4), dtype, endpoint=True)
    x[0, 0], y[0, 1], x[0, 1] = np.iinfo(dtype).max, np.iinfo(dtype).max, 0
    expected = OPERATORS[op_type](x, y)
    z = run(model(op_type, dtype, expected.dtype, **({"axis": 1} if op_type == "Concat" else {})), x=x, y=y)
    assert z.dtype == expected.dtype
    np.testing.assert_array_equal(z, expected)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_constants_without_a_sign_are_added_on_the_torch_provider(dtype):
    file = model("Add", dtype, dtype)
    del file.graph.input[1]
    file.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 2], dtype), "y"))
    z = run(file, x=np.full((1, 2), np.iinfo(dtype).max, dtype))
    assert z.tolist() == [[0, 1]] and z.dtype == dtype


SHIFTS = {"LEFT": np.left_shift, "RIGHT": np.right_shift}


@pytest.mark.parametrize("direction", SHIFTS)
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_bits_are_shifted_out_and_zeros_in(direction, dtype, rng):
    bits = 8 * np.dtype(dtype).itemsize
    x = rng.integers(np.iinfo(dtype).max // 2, np.iinfo(dtype).max, (1, bits), dtype, endpoint=True)
    by = np.arange(bits, dtype=dtype)[None]
    z = run(model("BitShift", dtype, dtype, direction=direction), x=x, y=by)
    np.testing.assert_array_equal(z, SHIFTS[direction](x, by))


@pytest.mark.parametrize("largest", [0, 1])
def test_64_bits_without_a_sign_are_ordered_as_numbers(largest, rng):
    x = rng.integers(0, np.iinfo(np.uint64).max, (3, 7), np.uint64, endpoint=True)
    kind = onnx.TensorProto.UINT64
    node = helper.make_node("TopK", ["x", "k"], ["values", "indices"], largest=largest)
    infos = [helper.make_tensor_value_info("x", kind, [3, 7]), helper.make_tensor_value_info("values", kind, [3, 2])]
    indices = helper.make_tensor_value_info("indices", onnx.TensorProto.INT64, [3, 2])
    count = onnx.numpy_helper.from_array(np.array([2]), "k")
    graph = helper.make_graph([node], "g", infos[:1], [infos[1], indices], [count])
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = ontrain.InferenceSession(file, providers=["TorchExecutionProvider"])
    values, places = session.run(None, {"x": x})
    expected = np.sort(x, axis=1)[:, ::-1][:, :2] if largest else np.sort(x, axis=1)[:, :2]
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(np.take_along_axis(x, places, 1), expected)
