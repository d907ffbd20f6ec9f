"""Nodes by onnxruntime's kernels on planned memory: short lines of pixels, with all that a convolution may be told."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import ontrain
from tests.providers.torch.lowering.files import assert_as_onnxruntime, calls, file_of

FORMS = {
    "plain": {}, "stride": {"strides": [3]}, "pads": {"pads": [19, 22]}, "gaps": {"dilations": [5]},
    "groups": {"group": 2}, "same": {"auto_pad": "SAME_UPPER", "strides": [2]},
    "uneven": {"pads": [0, 7], "strides": [4]},
}  # fmt: skip


def _line(rng, attributes, *, filters=2, pixels=4000, images=1, flat=True):
    channels, group = 2, attributes.get("group", 1)
    x = rng.standard_normal((images, channels, pixels)).astype(np.float32)
    w = rng.standard_normal((filters, channels // group, 11)).astype(np.float32)
    if not flat:
        x, w = x[:, :, None], w[:, :, None]
        wide = {"strides": [1], "dilations": [1]}
        attributes = {
            key: [*wide[key], *value] if key in wide else [0, value[0], 0, value[1]] if key == "pads" else value
            for key, value in attributes.items()
        }
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], **attributes)
    weights = {"w": w, "b": rng.standard_normal(filters).astype(np.float32)}
    return file_of([node], {"x": x}, weights, ["y"]), {"x": x}


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_a_short_line_is_one_call(rng, form, flat):
    names = calls(assert_as_onnxruntime(*_line(rng, FORMS[form], flat=flat), rtol=1e-5, atol=1e-5))
    assert names.count("onnxruntime_Conv") == 1


@pytest.mark.parametrize("sizes", [{"images": 2}, {"filters": 40, "pixels": 40_000}], ids=str)
def test_several_images_and_long_lines_are_not(rng, sizes):
    names = calls(assert_as_onnxruntime(*_line(rng, {}, **sizes), rtol=1e-4, atol=1e-4))
    assert "onnxruntime_Conv" not in names


@pytest.mark.parametrize("activation, numbers", [("Relu", []), ("Sigmoid", []), ("Tanh", []), ("LeakyRelu", [0.2]),
                                                 ("Clip", [-0.5, 0.5]), ("Swish", []), ("HardSwish", [])])  # fmt: skip
def test_what_is_applied_to_it(rng, activation, numbers):
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 1, 3000), (1, 1, 31)))
    told = {"activation_params": numbers} if numbers else {}
    node = helper.make_node("FusedConv", ["x", "w"], ["y"], domain="com.microsoft", activation=activation, **told)
    plain = helper.make_node("Conv", ["x", "w"], ["y"])
    fused, wanted = (
        ontrain.InferenceSession(content, providers=["TorchExecutionProvider"]).run(None, {"x": x})[0]
        for content in (file_of([n], {"x": x}, {"w": w}, ["y"], microsoft=1) for n in (node, plain))
    )
    functions = {
        "Relu": lambda y: np.maximum(y, 0), "Sigmoid": lambda y: 1 / (1 + np.exp(-y)), "Tanh": np.tanh,
        "LeakyRelu": lambda y: np.where(y < 0, 0.2 * y, y), "Clip": lambda y: y.clip(-0.5, 0.5),
        "Swish": lambda y: y / (1 + np.exp(-y)), "HardSwish": lambda y: y * (y / 6 + 0.5).clip(0, 1),
    }  # fmt: skip
    np.testing.assert_allclose(fused, functions[activation](wanted.astype(np.float64)), rtol=1e-5, atol=1e-5)


def test_a_result_that_is_read_transposed_and_an_operand_that_comes_so(rng):
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 2000, 2), (2, 2, 11)))
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Conv", ["turned", "w"], ["line"]),
        helper.make_node("Transpose", ["line"], ["y"], perm=[0, 2, 1]),
    ]
    session = assert_as_onnxruntime(file_of(nodes, {"x": x}, {"w": w}, ["y"]), {"x": x}, rtol=1e-5, atol=1e-5)
    assert "onnxruntime_Conv" in calls(session)


IMAGES = {
    "plain": {}, "patches": {"strides": [3, 3]}, "pads": {"pads": [1, 0, 2, 1]}, "gaps": {"dilations": [2, 1]},
    "groups": {"group": 2}, "each channel alone": {"group": 4}, "same": {"auto_pad": "SAME_LOWER"},
}  # fmt: skip


@pytest.mark.parametrize("number", [None, np.nan, np.inf])
@pytest.mark.parametrize("form", IMAGES)
def test_small_images_are_one_call(rng, form, number):
    x = rng.standard_normal((2, 4, 9, 11)).astype(np.float32)
    if number is not None:
        x[1, 2, 3, 4] = number
    w = rng.standard_normal((8, 4 // IMAGES[form].get("group", 1), 3, 3)).astype(np.float32)
    weights = {"w": w, "b": rng.standard_normal(8).astype(np.float32)}
    model = file_of([helper.make_node("Conv", ["x", "w", "b"], ["y"], **IMAGES[form])], {"x": x}, weights, ["y"])
    assert calls(assert_as_onnxruntime(model, {"x": x}, rtol=1e-5, atol=1e-5)) == ["onnxruntime_Conv"]


def test_large_images_are_not(rng):
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 16, 64, 64), (16, 16, 3, 3)))
    model = file_of([helper.make_node("Conv", ["x", "w"], ["y"])], {"x": x}, {"w": w}, ["y"])
    assert "onnxruntime_Conv" not in calls(assert_as_onnxruntime(model, {"x": x}, rtol=1e-4, atol=1e-4))


@pytest.mark.parametrize("between", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("small", ["Conv", "QuantizeLinear"])
def test_an_operand_that_a_kernel_left_with_its_channels_last(rng, between, small):
    """oneDNN makes such images of filters in its own order, and pooling leaves them so, whatever the plan says."""
    x = rng.standard_normal((1, 28, 11, 11)).astype(np.float32)
    weights = {
        name: (0.05 * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in (("w", (48, 28, 3, 3)), ("v", (64, 48, 2, 2)))
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["images"]),
        helper.make_node(between, ["images"], ["pooled"], kernel_shape=[3, 3], strides=[2, 2]),
    ]
    if small == "Conv":
        nodes.append(helper.make_node("Conv", ["pooled", "v"], ["y"]))
    else:
        weights |= {"scale": np.float32(0.1), "zero": np.uint8(128)}
        nodes += [
            helper.make_node("QuantizeLinear", ["pooled", "scale", "zero"], ["bytes"]),
            helper.make_node("DequantizeLinear", ["bytes", "scale", "zero"], ["y"]),
        ]
    session = assert_as_onnxruntime(file_of(nodes, {"x": x}, weights, ["y"]), {"x": x}, rtol=1e-4, atol=1e-4)
    assert any(name.startswith("onnxruntime_") for name in calls(session))
