"""Reals become bytes by one call of onnxruntime's kernel, with its numbers, as long as they are few."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ontrain
from tests.providers.torch.lowering.files import calls

NAN, INF = np.nan, np.inf
SHAPES = [(7,), (1, 1), (2, 3, 5), (4, 1, 3, 33), (64, 40)]


def _compared(node, x, weights, outputs):
    """A session of a node, whose results are onnxruntime's to the bit."""
    feed = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(x.shape))
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph([node], "quantised", [feed], results, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])
    wanted = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    for expected, result in zip(wanted, session.run(None, {"x": x}), strict=True):
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)
    return session


def _reals(rng, shape, hostile):
    x = rng.normal(0, 5, shape).astype(np.float32)
    if hostile:
        x.reshape(-1)[:: max(1, x.size // 4)] = rng.permutation([NAN, INF, -INF, 1e30, -0.0, 2.5])[0]
    return x


@pytest.mark.parametrize("hostile", [False, True], ids=["numbers", "NaN and infinities"])
@pytest.mark.parametrize("zero", [None, np.uint8, np.int8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_scale_is_one_call(rng, shape, zero, hostile):
    weights = {"scale": np.array(rng.uniform(0.01, 0.3), np.float32)}
    if zero is not None:
        weights["zero"] = np.array(rng.integers(np.iinfo(zero).min, np.iinfo(zero).max + 1), zero)
    node = helper.make_node("QuantizeLinear", ["x", *weights], ["y"])
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(zero or np.uint8))
    session = _compared(node, _reals(rng, shape, hostile), weights, {"y": kind})
    assert calls(session).count("onnxruntime_QuantizeLinear") == 1 and "round" not in calls(session)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_scale_for_each_place_of_an_axis_is_one_call(rng, axis):
    x = _reals(rng, (3, 4, 6), hostile=True)
    size = x.shape[axis]
    weights = {"scale": rng.uniform(0.01, 0.3, size).astype(np.float32), "zero": rng.integers(-9, 9, size, np.int8)}
    node = helper.make_node("QuantizeLinear", ["x", *weights], ["y"], axis=axis)
    session = _compared(node, x, weights, {"y": TensorProto.INT8})
    assert calls(session).count("onnxruntime_QuantizeLinear") == 1


@pytest.mark.parametrize("hostile", [False, True], ids=["numbers", "NaN and infinities"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_range_found_in_a_run_is_one_call(rng, shape, hostile):
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])
    outputs = {"y": TensorProto.UINT8, "scale": TensorProto.FLOAT, "zero": TensorProto.UINT8}
    session = _compared(node, _reals(rng, shape, hostile), {}, outputs)
    assert calls(session) == ["onnxruntime_DynamicQuantizeLinear"]


OTHERS = {
    "wide results": ({"zero": np.array(3, np.int16)}, {}, (6,)),
    "blocks": ({"scale": np.full((2, 3), 0.1, np.float32)}, {"block_size": 2, "axis": 0}, (4, 3)),
    "many numbers": ({"zero": np.array(3, np.int8)}, {}, (600, 600)),
    "nothing": ({"zero": np.array(3, np.int8)}, {}, (0, 3)),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_the_kernel_is_not_for_runs_by_the_body(rng, case):
    own, attributes, shape = OTHERS[case]
    weights = {"scale": np.array(0.1, np.float32), **own}
    node = helper.make_node("QuantizeLinear", ["x", *weights], ["y"], **attributes)
    zero = weights.get("zero", np.zeros((), np.uint8))
    session = _compared(node, _reals(rng, shape, False), weights, {"y": helper.np_dtype_to_tensor_dtype(zero.dtype)})
    assert "onnxruntime_QuantizeLinear" not in calls(session)


def test_nodes_of_the_same_types_share_one_session(rng):
    nodes, held = [], {}
    for number in range(3):
        held |= {f"s{number}": np.array(0.1 + number, np.float32), f"z{number}": np.array(number, np.int8)}
        nodes.append(helper.make_node("QuantizeLinear", ["x", f"s{number}", f"z{number}"], [f"y{number}"]))
    graph = helper.make_graph(
        nodes, "three", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5])],
        [helper.make_tensor_value_info(f"y{number}", TensorProto.INT8, None) for number in range(3)],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])
    session.run(None, {"x": _reals(rng, (5,), False)})
    (plan,) = session._own._session._planner.plans.values()
    kernels = [call.fn for call in plan.executable.current._program]
    assert len(kernels) == 3 and len({id(kernel._session) for kernel in kernels}) == 1
