"""Filters in oneDNN's order: shared between plans, and as right as those that torch rearranges."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import ontrain
from ontrain.providers.torch.weights import CONVOLUTION, Weights

WINDOWS = [1, 1], [1, 1], [1, 1], 1

pytestmark = pytest.mark.skipif(CONVOLUTION is None, reason="this torch has no convolutions by oneDNN")


def test_images_of_many_sizes_share_filters():
    weights, w = Weights(), torch.randn(64, 64, 3, 3)
    orders = {id(weights.filters(w, WINDOWS, (1, 64, height, 40))) for height in range(20, 60, 5)}
    assert len(orders) <= 2


def test_what_oneDNN_cannot_convolve_has_no_filters():
    assert Weights().filters(torch.randn(4, 3, 3, 3, dtype=torch.float64), WINDOWS, (1, 3, 8, 8)) is None


def _net(**windows):
    """Conv with its windows, added to its input's mean, then a Relu, a second Conv of one pixel, and a HardSwish."""
    rng = np.random.default_rng(0)
    groups, kernel = windows.get("group", 1), windows.pop("kernel")
    weights = {
        "w": rng.standard_normal((8, 4 // groups, *kernel)), "b": rng.standard_normal(8),
        "p": rng.standard_normal((6, 8, *[1] * len(kernel))),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["y"], **windows), helper.make_node("Relu", ["y"], ["r"]),
        helper.make_node("Conv", ["r", "p"], ["q"]), helper.make_node("HardSwish", ["q"], ["h"]),
        helper.make_node("Conv", ["r", "p"], ["s"]), helper.make_node("Add", ["h", "s"], ["t"]),
        helper.make_node("Relu", ["t"], ["out"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, *map("d{}".format, range(len(kernel)))])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", 6, *map("o{}".format, range(len(kernel)))])],
        [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model


NETS = {
    "plain": {"kernel": (3, 3)},
    "strides and pads": {"kernel": (3, 5), "strides": [2, 1], "pads": [1, 2, 1, 2]},
    "uneven pads": {"kernel": (3, 3), "pads": [0, 1, 2, 1]},
    "dilated": {"kernel": (3, 3), "dilations": [2, 2]},
    "grouped": {"kernel": (3, 3), "group": 2},
    "by channel": {"kernel": (3, 3), "group": 4},
    "one axis": {"kernel": (3,), "pads": [1, 1]},
    "three axes": {"kernel": (3, 3, 3)},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tune", ["0", "1"])
@pytest.mark.parametrize("name", NETS)
def test_nets_at_several_sizes_are_the_references(name, tune, monkeypatch):
    monkeypatch.setenv("ONTRAIN_TUNE", tune)
    model = _net(**NETS[name])
    session = ontrain.InferenceSession(model.SerializeToString(), providers=["TorchExecutionProvider"])
    reference = ReferenceEvaluator(model)
    rng = np.random.default_rng(1)
    for size in (9, 12, 9, 30):
        x = rng.standard_normal((2, 4, *[size] * len(NETS[name]["kernel"]))).astype(np.float32)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], reference.run(None, {"x": x})[0], 1e-4, 1e-4)


USES = {
    "no slope": {"activation": "LeakyRelu"},
    "a slope": {"activation": "LeakyRelu", "activation_params": [0.3]},
    "no bounds": {"activation": "Clip"},
    "one bound": {"activation": "Clip", "activation_params": [0.0]},
    "two bounds": {"activation": "Clip", "activation_params": [0.0, 0.5]},
    "a hard sigmoid": {"activation": "HardSigmoid", "activation_params": [1 / 6, 0.5]},
    "a steeper one": {"activation": "HardSigmoid", "activation_params": [0.25, 0.375]},
    "one without numbers": {"activation": "HardSigmoid"},
    "a sum that broadcasts": {"activation": "Relu", "z": [1, 4, 1, 1]},
    "a sum": {"activation": "Relu", "z": [1, 4, 4, 4]},
    "the sigmoid of a sum": {"activation": "Sigmoid", "z": [1, 4, 4, 4]},
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_fused_convolution_of_a_file_is_its_body_whether_onednn_takes_it_or_not(use):
    rng = np.random.default_rng(2)
    shapes = {"x": [1, 4, 6, 6], **({"z": use["z"]} if "z" in use else {})}
    weights = {"w": rng.standard_normal((4, 4, 3, 3)).astype("f"), "b": rng.standard_normal(4).astype("f")}
    feeds = {name: rng.standard_normal(shape).astype("f") for name, shape in shapes.items()}
    attributes = {name: value for name, value in use.items() if name != "z"}
    node = helper.make_node(
        "FusedConv", ["x", "w", "b", "z"][: 2 + len(shapes)], ["y"], domain="com.microsoft", **attributes
    )
    graph = helper.make_graph(
        [node], "fused", [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 4, 4])],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )  # fmt: skip
    domains = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    content = helper.make_model(graph, opset_imports=domains, ir_version=9).SerializeToString()
    (y,) = ontrain.InferenceSession(content, providers=["TorchExecutionProvider"]).run(None, feeds)
    total = torch.conv2d(*(torch.from_numpy(array).double() for array in (feeds["x"], *weights.values())))
    total = total + torch.from_numpy(feeds["z"]) if "z" in feeds else total
    numbers = use.get("activation_params", [])
    wanted = {
        "LeakyRelu": lambda: torch.nn.functional.leaky_relu(total, *numbers or [0.01]),
        "Clip": lambda: total.clamp(*numbers) if numbers else total,
        "HardSigmoid": lambda: (total * (numbers or [0.2])[0] + (numbers or [0.5])[-1]).clamp(0, 1),
        "Relu": lambda: total.relu(), "Sigmoid": lambda: total.sigmoid(),
    }[use["activation"]]()  # fmt: skip
    np.testing.assert_allclose(y, wanted.numpy(), 1e-5, 1e-5)


def test_sessions_of_one_file_do_not_share_weights():
    """Filters are found by where weights lie: another session's may lie there once the first is gone."""
    model, x = _net(kernel=(3, 3)), np.ones((1, 4, 8, 8), np.float32)
    for scale in (1.0, 2.0, 3.0):
        weights = model.graph.initializer[0]
        weights.CopyFrom(numpy_helper.from_array(np.full((8, 4, 3, 3), scale, np.float32), "w"))
        session = ontrain.InferenceSession(model.SerializeToString(), providers=["TorchExecutionProvider"])
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0], ReferenceEvaluator(model).run(None, {"x": x})[0], 1e-4, 1e-4
        )
        del session
