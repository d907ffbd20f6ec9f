"""Reals become whole numbers and back by one call of onnxruntime's kernel, with its numbers, while they are few."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ontrain
from tests.providers.torch.lowering.files import assert_as_onnxruntime, calls, file_of

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
@pytest.mark.parametrize("zero", [None, np.uint8, np.int8, np.uint16, np.int16])
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


def _there_and_back(rng, zero, size=None):
    """Two nodes, and their weights: of one scale, or of one for each place of axis 1."""
    scale, points = (0.1, 7) if size is None else (rng.uniform(0.01, 0.3, size), rng.integers(1, 9, size))
    weights = {"s": np.array(scale, np.float32)} | ({} if zero is None else {"z": np.array(points, zero)})
    names = [*weights]
    return [
        helper.make_node("QuantizeLinear", ["x", *names], ["q"]),
        helper.make_node("DequantizeLinear", ["q", *names], ["y"]),
    ], weights  # fmt: skip


@pytest.mark.parametrize("hostile", [False, True], ids=["numbers", "NaN and infinities"])
@pytest.mark.parametrize("zero", [None, np.uint8, np.int8])
@pytest.mark.parametrize("shape, size", [((7,), None), ((2, 3, 5), None), ((2, 3, 5), 3), ((64, 40), 40)], ids=str)
def test_bytes_that_become_reals_at_once_are_one_call(rng, shape, size, zero, hostile):
    nodes, weights = _there_and_back(rng, zero, size)
    fed = {"x": _reals(rng, shape, hostile)}
    session = assert_as_onnxruntime(file_of(nodes, fed, weights, ["y"]), fed, rtol=0)
    assert calls(session) == ["onnxruntime_QuantizeLinear_DequantizeLinear"]


def test_bytes_that_are_read_twice_are_made_once(rng):
    nodes, weights = _there_and_back(rng, np.uint8)
    nodes += [helper.make_node("DequantizeLinear", ["q", "t", "z"], ["w"])]
    fed = {"x": _reals(rng, (3, 4), False)}
    model = file_of(nodes, fed, {**weights, "t": np.array(0.3, np.float32)}, ["y", "w"])
    names = calls(assert_as_onnxruntime(model, fed, rtol=0))
    assert sorted(names) == ["onnxruntime_DequantizeLinear"] * 2 + ["onnxruntime_QuantizeLinear"]


def test_scales_that_are_fed_and_change(rng):
    nodes, _ = _there_and_back(rng, np.uint8)
    fed = {"x": _reals(rng, (3, 4), False), "s": np.array(0.1, np.float32), "z": np.array(9, np.uint8)}
    model = file_of(nodes, fed, {}, ["y"])
    session = assert_as_onnxruntime(model, fed, rtol=0)
    other = {**fed, "s": np.array(0.7, np.float32), "z": np.array(200, np.uint8)}
    (wanted,) = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, other)
    np.testing.assert_array_equal(session.run(None, other)[0], wanted)


def test_bytes_become_reals_inside_a_branch_of_what_was_made_outside(rng):
    nodes, weights = _there_and_back(rng, np.int8)

    def branch(name, extra):
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        inner = helper.make_node("DequantizeLinear", ["q", "s", "z"], [f"{name}r"])
        return helper.make_graph([inner, helper.make_node(extra, [f"{name}r"], [name])], name, [], [out])

    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch("t", "Neg"), else_branch=branch("e", "Abs"))
    x = _reals(rng, (3, 4), False)
    for chosen in (True, False):
        fed = {"x": x, "c": np.array(chosen)}
        assert_as_onnxruntime(file_of([nodes[0], choice], fed, weights, ["y"]), fed, rtol=0)


def _bytes(rng, shape, kind):
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max + 1, shape).astype(kind)


def _scaled(rng, name, kind):
    return {f"{name}s": np.array(rng.uniform(0.01, 0.1), np.float32), f"{name}z": _bytes(rng, (), kind)}


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_sums_and_products_of_bytes_are_one_call(rng, op_type, kind):
    weights = {**_scaled(rng, "a", kind), **_scaled(rng, "b", kind), **_scaled(rng, "y", kind)}
    names = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    nodes = [helper.make_node(op_type, names, ["q"], domain="com.microsoft"),
             helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT)]  # fmt: skip
    fed = {"a": _bytes(rng, (2, 5, 7), kind), "b": _bytes(rng, (5, 1), kind)}
    names = calls(assert_as_onnxruntime(file_of(nodes, fed, weights, ["y"], microsoft=1), fed, rtol=0))
    assert names[0] == f"onnxruntime_{op_type}" and "round" not in names


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize(
    "op_type, settings",
    [("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.2}), ("QLinearSoftmax", {"axis": -1, "opset": 13}),
     ("QLinearGlobalAveragePool", {"channels_last": 0})],
)  # fmt: skip
def test_functions_of_bytes_are_one_call(rng, op_type, settings, kind):
    weights = {**_scaled(rng, "x", kind), **_scaled(rng, "y", kind)}
    if op_type == "QLinearSoftmax":  # onnxruntime demands the range of chances
        least = np.iinfo(kind).min
        weights |= {"ys": np.array(1 / 256, np.float32), "yz": np.array(least, kind)}
    nodes = [helper.make_node(op_type, ["x", "xs", "xz", "ys", "yz"], ["q"], domain="com.microsoft", **settings),
             helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT)]  # fmt: skip
    fed = {"x": _bytes(rng, (2, 3, 4, 6), kind)}
    names = calls(assert_as_onnxruntime(file_of(nodes, fed, weights, ["y"], microsoft=1), fed, rtol=0))
    assert names[0] == f"onnxruntime_{op_type}"
