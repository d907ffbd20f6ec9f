"""Operands without elements or axes, of which stock onnxruntime's process would end."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ontrain import InferenceSession, ProviderError
from ontrain.files.demands import Demand
from ontrain.files.traps import guard

GRU, LSTM = {"w": (1, 6, 3), "r": (1, 6, 2)}, {"w": (1, 8, 3), "r": (1, 8, 2)}


def model(op_type, operands, shape=None, domain="", opset=17, weights=(), **attributes):
    """One node; the first operand is stated to have this shape, the others have whatever shapes."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape if at == 0 else None)
        for at, (name, array) in enumerate(operands.items())
        if name not in weights
    ]
    kind = TensorProto.INT32 if op_type == "ConvInteger" else TensorProto.FLOAT
    node = helper.make_node(op_type, list(operands), ["y"], domain=domain, **attributes)
    stored = [numpy_helper.from_array(operands[name], name) for name in weights]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", kind, None)], stored)
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def floats(shapes):
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


CASES = {
    "GRU without steps": ("GRU", {"x": (0, 2, 3), **GRU}, "", {"hidden_size": 2}),
    "GRU without rows": ("GRU", {"x": (4, 0, 3), **GRU}, "", {"hidden_size": 2}),
    "LSTM without rows": ("LSTM", {"x": (4, 0, 3), **LSTM}, "", {"hidden_size": 2}),
    "volume without depth": ("ConvTranspose", {"x": (1, 1, 0, 2, 2), "w": (1, 1, 2, 2, 2)}, "", {}),
    "inverse of nothing": ("Inverse", {"x": (2, 0, 0)}, "com.microsoft", {}),
    "values without width": (
        "MultiHeadAttention", {"q": (1, 2, 4), "k": (1, 2, 4), "v": (1, 2, 0)}, "com.microsoft", {"num_heads": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("provider", ["CPUExecutionProvider", None])
def test_nothing_to_compute_is_a_named_error(case, provider):
    op_type, shapes, domain, attributes = CASES[case]
    feeds = floats(shapes)
    content = model(op_type, feeds, domain=domain, **attributes).SerializeToString()
    session = InferenceSession(content, providers=None if provider is None else [provider])
    with pytest.raises(ProviderError, match="operand . has no elements") as caught:
        session.run(None, feeds)
    assert caught.value.node == f"{op_type} y"


def test_heads_that_there_are_none_of_are_a_named_error():
    feeds = floats(dict.fromkeys("qkv", (1, 0, 2, 4)))
    session = InferenceSession(model("Attention", feeds, opset=23).SerializeToString())
    with pytest.raises(ProviderError, match="operand . has no elements"):
        session.run(None, feeds)


def test_an_image_without_axes_is_a_named_error():
    feeds = {"x": np.array(1, np.uint8), "w": np.ones((1, 1, 2, 2), np.uint8)}
    session = InferenceSession(model("ConvInteger", feeds, opset=17).SerializeToString())
    with pytest.raises(ProviderError, match="too few axes"):
        session.run(None, feeds)


@pytest.mark.parametrize("window", [0, 4])
def test_a_transform_of_windows_without_length_is_a_named_error(window):
    feeds = {"x": np.ones((1, 16, 1), np.float32), "step": np.array(4), "window": np.ones(window, np.float32)}
    feeds["length"] = np.array(window)
    content = model("STFT", feeds).SerializeToString()
    wanted = None if not window else onnxruntime.InferenceSession(content).run(None, feeds)[0]
    session = InferenceSession(content)
    if wanted is not None:
        np.testing.assert_array_equal(session.run(None, feeds)[0], wanted)
        feeds["length"] = np.array(0)
    with pytest.raises(ProviderError, match="is zero"):
        session.run(None, feeds)


def test_a_transform_whose_length_is_stored_in_the_file_is_computed():
    """torch's exporter stores the length as a number, whose lack of axes onnxruntime then knows."""
    feeds = {"x": np.ones((1, 16, 1), np.float32), "step": np.array(4), "window": np.ones(4, np.float32)}
    feeds["length"] = np.array(4)
    content = model("STFT", feeds, weights=("step", "window", "length")).SerializeToString()
    session = InferenceSession(content, providers=["CPUExecutionProvider"])
    wanted = onnxruntime.InferenceSession(content).run(None, {"x": feeds["x"]})[0]
    np.testing.assert_array_equal(session.run(None, {"x": feeds["x"]})[0], wanted)


@pytest.mark.parametrize("opset", [7, 11, 14, 22])
@pytest.mark.parametrize(
    ("op_type", "shapes"),
    [("GRU", {"x": (4, 2, 3), **GRU}), ("LSTM", {"x": (4, 2, 3), **LSTM}), ("LSTM", {"x": (0, 2, 3), **LSTM})],
    ids=["GRU", "LSTM", "LSTM without steps"],
)
def test_what_onnxruntime_computes_it_computes(op_type, shapes, opset):
    feeds = floats(shapes)
    content = model(op_type, feeds, opset=opset, hidden_size=2).SerializeToString()
    (wanted,) = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feeds)
    (result,) = InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feeds)
    np.testing.assert_array_equal(result, wanted)
    assert result.shape == (shapes["x"][0], 1, 2, 2)


def scan(rank, opset=17, **attributes):
    """The rows of x along an axis, stacked along an axis, beside a value that is carried."""
    step = [helper.make_tensor_value_info("c", TensorProto.FLOAT, [1])]
    step += [helper.make_tensor_value_info("row", TensorProto.FLOAT, [None] * (rank - 1))]
    inputs = [helper.make_tensor_value_info("d", TensorProto.FLOAT, [1])]
    inputs += [helper.make_tensor_value_info("same", TensorProto.FLOAT, [None] * (rank - 1))]
    nodes = [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Relu", ["row"], ["same"])]
    body = helper.make_graph(nodes, "body", step, inputs)
    node = helper.make_node("Scan", ["first", "x"], ["last", "y"], body=body, num_scan_inputs=1, **attributes)
    inputs = [helper.make_tensor_value_info("first", TensorProto.FLOAT, [1])]
    inputs += [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None] * rank)]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("last", "y")]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8).SerializeToString()


@pytest.mark.parametrize("opset", [9, 11, 17, 21])
@pytest.mark.parametrize(
    ("shape", "axes", "message"),
    [
        ((2, 0, 3), {"scan_input_axes": [1]}, "operand 1 has no elements"),
        ((2, 3, 0), {"scan_input_axes": [1]}, "operand 1 has no elements"),
        ((2, 3, 0), {"scan_input_axes": [-1]}, "operand 1 has no elements"),
        ((2, 0, 3), {"scan_output_axes": [1]}, "result 1 of the graph inside has no elements"),
        ((2, 0, 3), {"scan_output_axes": [-2], "scan_output_directions": [1]}, "result 1 of the graph inside"),
        ((0, 2, 3), {"scan_input_axes": [2], "scan_output_axes": [1]}, "result 1 of the graph inside"),
    ],
    ids=str,
)
def test_a_scan_that_would_move_axes_of_nothing_is_a_named_error(shape, axes, message, opset):
    session = InferenceSession(scan(3, opset, **axes), providers=["CPUExecutionProvider"])
    with pytest.raises(ProviderError, match=message) as caught:
        session.run(None, {"first": np.ones(1, np.float32), "x": np.ones(shape, np.float32)})
    assert caught.value.node == "Scan last"


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((2, 3, 4), {"scan_input_axes": [1], "scan_output_axes": [2], "scan_input_directions": [1]}),
        ((2, 3, 4), {"scan_input_axes": [-1], "scan_output_axes": [-2]}),
        ((2, 0, 3), {}),
        ((0, 2, 3), {"scan_input_axes": [1]}),
        ((0, 2, 3), {"scan_input_axes": [-1]}),
    ],
    ids=str,
)
def test_a_scan_that_onnxruntime_computes_it_computes(shape, axes, opset):
    content = scan(3, opset, **axes)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    feeds = {"first": np.ones(1, np.float32), "x": x}
    wanted = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feeds)
    results = InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feeds)
    for result, value in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result, value, strict=True)


def test_sizes_that_the_file_states_need_no_guard():
    feeds = floats({"x": (4, 2, 3), **GRU})
    assert not guard(model("GRU", feeds, [4, 2, 3], hidden_size=2))
    assert guard(model("GRU", feeds, ["steps", 2, 3], hidden_size=2))


def test_sizes_that_a_file_states_of_inner_values_are_not_believed():
    feeds = floats({"x": (0, 2, 3), **GRU})
    proto = model("GRU", feeds, hidden_size=2)
    proto.graph.node[0].input[0] = "h"
    proto.graph.node.insert(0, helper.make_node("Relu", ["x"], ["h"]))
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [4, 2, 3]))
    assert guard(onnx.ModelProto.FromString(proto.SerializeToString()))
    assert not guard(onnx.ModelProto.FromString(proto.SerializeToString()), shapes_hold=True)


def test_pictures_and_signals_need_no_guard():
    flat = floats({"x": (1, 1, 4, 4), "w": (1, 1, 2, 2)})
    assert not guard(model("ConvTranspose", flat, weights=["w"]))
    assert guard(model("ConvTranspose", floats({"x": (1, 1, 4, 4, 4), "w": (1, 1, 2, 2, 2)}), weights=["w"]))


def test_a_demand_on_known_sizes():
    assert Demand(0).holds([1, 2]) and not Demand(0).holds([1, 0])
    assert Demand(0, (1,)).holds([0, 2]) and not Demand(0, (1,)).holds([2, 0]) and not Demand(0, (1,)).holds([2])
    assert Demand(0, rank=3).holds([0, 0, 0]) and not Demand(0, rank=3).holds([1, 1])
