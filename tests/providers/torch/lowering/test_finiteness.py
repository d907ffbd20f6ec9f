"""NaN and infinities pass through products that oneDNN activates, as they do in onnxruntime."""

import numpy as np
import pytest
from onnx import helper

from tests.providers.torch.lowering.files import assert_as_onnxruntime, calls, file_of

RANDOM = np.random.default_rng(0)
FILTERS, MATRIX = (RANDOM.standard_normal(s).astype(np.float32) / 8 for s in ((32, 32, 3, 3), (64, 256)))
ACTIVATIONS = {
    "Relu": ({}, {}), "Clip": ({"low": np.float32(0), "high": np.float32(6)}, {}),
    "HardSigmoid": ({}, {"alpha": 1 / 6, "beta": 0.5}), "LeakyRelu": ({}, {"alpha": 0.1}), "Sigmoid": ({}, {}),
}  # fmt: skip
"""The activations' further inputs and their attributes."""


def _images(strange):
    images = RANDOM.standard_normal((2, 32, 24, 24)).astype(np.float32)
    images[0, 1, 2, 3] = strange
    return images


def _activation(name, source):
    bounds, attributes = ACTIVATIONS[name]
    return helper.make_node(name, [source, *bounds], ["y"], **attributes), bounds


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf, 3])
def test_an_image_that_is_not_finite(name, strange):
    node, bounds = _activation(name, "c")
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), node]
    fed = {"x": _images(strange)}
    model = file_of(nodes, fed, {"w": FILTERS, **bounds}, ["y"], opset=14)
    assert_as_onnxruntime(model, fed, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strange", [np.nan, np.inf, 3])
def test_what_is_added_to_a_convolution(strange):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Add", ["c", "z"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]  # fmt: skip
    fed = {"x": _images(3), "z": _images(strange)}
    assert_as_onnxruntime(file_of(nodes, fed, {"w": FILTERS}, ["y"]), fed, rtol=1e-4, atol=1e-5)


def test_a_division_by_zero_on_the_way():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Div", ["r", "z"], ["q"]),
        helper.make_node("Conv", ["q", "w"], ["d"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["d"], ["y"]),
    ]  # fmt: skip
    fed = {"x": _images(3), "z": np.ones((2, 32, 24, 24), np.float32)}
    fed["z"][1, 0, 5, 5] = 0
    assert_as_onnxruntime(file_of(nodes, fed, {"w": FILTERS}, ["y"]), fed, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strange", [np.nan, np.inf, 3])
def test_rows_of_a_linear_layer(strange):
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    fed = {"x": RANDOM.standard_normal((64, 64)).astype(np.float32)}
    fed["x"][3, 4] = strange
    model = file_of(nodes, fed, {"w": MATRIX, "b": MATRIX[0]}, ["y"])
    assert_as_onnxruntime(model, fed, rtol=1e-4, atol=1e-5)


def test_a_network_asks_once_whether_its_images_are_finite():
    names = [f"r{i}" for i in range(4)]
    nodes = []
    for source, name in zip(["x", *names], names, strict=False):
        nodes.append(helper.make_node("Conv", [source, "w"], [f"{name}c"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"{name}c"], [name]))
    nodes.append(helper.make_node("MaxPool", [names[-1]], ["y"], kernel_shape=[2, 2]))
    fed = {"x": _images(3)}
    session = assert_as_onnxruntime(file_of(nodes, fed, {"w": FILTERS}, ["y"]), fed, rtol=1e-3, atol=1e-4)
    assert calls(session).count("_is_not_finite") == 1
