"""Quantisation on the torch provider gives the whole numbers that onnxruntime's kernels give, for hostile reals too."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ontrain

NAN, INF = np.nan, np.inf
KINDS = [np.int8, np.uint8, np.int16, np.uint16]


def both(op_type, kinds, x, constants=(), domain="", attributes=None):
    """What onnxruntime and the torch provider compute; `kinds` are the outputs' types."""
    names = ["y", "scale", "zero"][: len(kinds)]
    weights = [numpy_helper.from_array(np.asarray(c), f"c{i}") for i, c in enumerate(constants)]
    node = helper.make_node(op_type, ["x", *(w.name for w in weights)], names, domain=domain, **attributes or {})
    feed = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), list(x.shape))
    outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(names, kinds, strict=True)]
    graph = helper.make_graph([node], "one node", [feed], outputs, weights)
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=10).SerializeToString()
    stock = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"], strict_providers=True)
    return stock, session.run(None, {"x": x})


def assert_same(results):
    stock, own = results
    for expected, result in zip(stock, own, strict=True):
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("repeats", [1, 33], ids=["few", "many"])
@pytest.mark.parametrize(("scale", "zero"), [(1.0, 0), (0.5, 3), (INF, 5), (NAN, 5), (0.0, 5)])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_nan_becomes_the_least_number_and_infinities_the_bounds(kind, scale, zero, repeats):
    x = np.tile(np.array([NAN, -NAN, INF, -INF, 3e38, -3e38, 1e10, -70000, 300, 2.5, -0.0, 0.5], np.float32), repeats)
    target = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    assert_same(both("QuantizeLinear", [target], x, [np.float32(scale), kind(zero)]))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_half_numbers_are_divided_in_32_bits(kind, rng):
    x = np.concatenate([rng.normal(0, 30, 4000), [NAN, 40000, -40000, 65504, 2049.0]]).astype(np.float16)
    target = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    assert_same(both("QuantizeLinear", [target], x, [np.float16(0.3), kind(3)]))


@pytest.mark.parametrize("repeats", [1, 5], ids=["few", "many"])
@pytest.mark.parametrize("ends", [[NAN], [INF], [-INF], [NAN, INF], [INF, -INF]], ids=str)
def test_nan_does_not_count_for_a_range_found_in_a_run(ends, repeats):
    x = np.concatenate([ends, np.tile(np.linspace(-2, 3, 11), repeats)]).astype(np.float32)
    types = [TensorProto.UINT8, TensorProto.FLOAT, TensorProto.UINT8]
    assert_same(both("DynamicQuantizeLinear", types, x))


@pytest.mark.parametrize("x", [np.zeros(5), np.full(5, NAN), np.full(5, 1e-45), [3e38, -3e38], [-1.0], [4.0]], ids=str)
def test_the_scale_of_no_range_is_one(x):
    types = [TensorProto.UINT8, TensorProto.FLOAT, TensorProto.UINT8]
    assert_same(both("DynamicQuantizeLinear", types, np.asarray(x, np.float32)))
