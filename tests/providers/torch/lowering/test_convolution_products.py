"""Small convolutions over one axis, or of one pixel: torch's in double precision, with all that may follow them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import ontrain
from tests.providers.torch.lowering.files import calls

APPLIED = {
    "": (lambda y: y, {}), "Relu": (torch.relu, {}), "Sigmoid": (torch.sigmoid, {}), "Tanh": (torch.tanh, {}),
    "LeakyRelu": (lambda y: torch.nn.functional.leaky_relu(y, 0.3), {"activation_params": [0.3]}),
    "Clip": (lambda y: y.clamp(-0.5, 0.25), {"activation_params": [-0.5, 0.25]}),
    "HardSigmoid": (torch.nn.functional.hardsigmoid, {"activation_params": [1 / 6, 0.5]}),
    "HardSwish": (torch.nn.functional.hardswish, {}), "Swish": (torch.nn.functional.silu, {}),
}  # fmt: skip
GEOMETRY = {
    "plain": {}, "pads": {"pads": [2, 2]}, "uneven pads": {"pads": [0, 2]}, "strides": {"strides": [3]},
    "both": {"strides": [2], "pads": [1, 1]}, "same": {"auto_pad": "SAME_UPPER"}, "dilated": {"dilations": [2]},
    "groups": {"group": 2},
}  # fmt: skip


def _session(x, w, b, z=None, **attributes):
    """Two layers, so that the second reads what the first made where it lies."""
    fed = {"x": x} | ({} if z is None else {"z": z})
    weights = {"w": w} | ({} if b is None else {"b": b})
    kind = "FusedConv" if "activation" in attributes or z is not None else "Conv"
    inputs = ["x", "w", "b" if b is not None else "", *(["z"] if z is not None else [])]
    node = helper.make_node(kind, inputs, ["y"], domain="com.microsoft" if kind == "FusedConv" else "", **attributes)
    graph = helper.make_graph(
        [node], "line", [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in fed.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    content = helper.make_model(graph, opset_imports=domains, ir_version=9).SerializeToString()
    session = ontrain.InferenceSession(content, providers=["TorchExecutionProvider"])
    return session, session.run(None, fed)[0]


def _operands(group=1, channels=6, pixels=11):
    rng = np.random.default_rng(0)
    shapes = (1, channels, pixels), (4, channels // group, 3), (4,)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def _wanted(x, w, b, strides=(1,), pads=(0, 0), dilations=(1,), group=1, auto_pad=""):
    x, w, b = (None if a is None else torch.from_numpy(a).double() for a in (x, w, b))
    pads = (1, 1) if auto_pad else pads
    return torch.conv1d(torch.nn.functional.pad(x, list(pads)), w, b, strides, 0, dilations, group)


@pytest.mark.parametrize("tune", ["0", "1"])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("name", GEOMETRY)
def test_windows_of_all_kinds(name, biased, tune, monkeypatch):
    monkeypatch.setenv("ONTRAIN_TUNE", tune)
    a = GEOMETRY[name]
    x, w, b = _operands(a.get("group", 1))
    _, y = _session(x, w, b if biased else None, **a)
    np.testing.assert_allclose(y, _wanted(x, w, b if biased else None, **a), 1e-5, 1e-5)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("name", APPLIED)
def test_what_follows(name, adds):
    x, w, b = _operands()
    function, numbers = APPLIED[name]
    z = np.random.default_rng(1).standard_normal((1, 4, 9)).astype(np.float32) if adds else None
    _, y = _session(x, w, b, z, activation=name, **numbers)
    total = _wanted(x, w, b) + (0 if z is None else torch.from_numpy(z))
    np.testing.assert_allclose(y, function(total), 1e-5, 1e-5)


@pytest.mark.parametrize("name", ["plain", "pads", "both"])
def test_images_of_one_row_are_lines(name):
    x, w, b = _operands()
    a = {key: [1, *value] if key == "strides" else [0, value[0], 0, value[1]] for key, value in GEOMETRY[name].items()}
    _, y = _session(x[:, :, None], w[:, :, None], b, **a)
    np.testing.assert_allclose(y[:, :, 0], _wanted(x, w, b, **GEOMETRY[name]), 1e-5, 1e-5)


def test_rows_of_pads_beside_the_line_are_no_line():
    x, w, b = _operands()
    session, y = _session(x[:, :, None], w[:, :, None], b, pads=[1, 0, 1, 0])
    wanted = torch.nn.functional.pad(_wanted(x, w, None)[:, :, None], [0, 0, 1, 1]) + torch.from_numpy(b)[:, None, None]
    assert y.shape == (1, 4, 3, 9) and "addmm" not in calls(session)
    np.testing.assert_allclose(y, wanted, 1e-5, 1e-5)


def test_a_small_one_is_a_product():
    session, _ = _session(*_operands())
    assert "addmm" in calls(session)


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("name", APPLIED)
def test_filters_of_one_pixel(name, adds, images):
    rng = np.random.default_rng(2)
    shapes = (images, 6, 5, 7), (4, 6, 1, 1), (4,), (images, 4, 5, 7)
    x, w, b, z = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    function, numbers = APPLIED[name]
    session, y = _session(x, w, b, z if adds else None, activation=name, **numbers)
    wanted = torch.conv2d(*(torch.from_numpy(a).double() for a in (x, w, b))) + (torch.from_numpy(z) if adds else 0)
    assert "addmm" in calls(session)
    np.testing.assert_allclose(y, function(wanted), 1e-5, 1e-5)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    "a", [{"strides": [2, 2]}, {"pads": [1, 0, 0, 1]}, {"group": 2}, {"dilations": [3, 3]}], ids=str
)
def test_filters_of_one_pixel_that_skip_or_pad(a, biased):
    rng = np.random.default_rng(3)
    shapes = (2, 6, 5, 7), (4, 6 // a.get("group", 1), 1, 1), (4,)
    x, w, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    _, y = _session(x, w, b if biased else None, **a)
    top, left, bottom, right = a.get("pads", [0] * 4)
    padded = torch.nn.functional.pad(torch.from_numpy(x).double(), [left, right, top, bottom])
    bias = torch.from_numpy(b).double() if biased else None
    wanted = torch.conv2d(padded, torch.from_numpy(w).double(), bias, a.get("strides", 1), groups=a.get("group", 1))
    np.testing.assert_allclose(y, wanted, 1e-5, 1e-5)


def test_many_pixels_are_convolved():
    x, w = np.ones((1, 4, 64, 64), np.float32), np.ones((8, 4, 1, 1), np.float32)
    session, y = _session(x, w, None)
    assert not {"mm", "addmm"} & set(calls(session)) and (y == 4).all()


def test_batches_and_large_ones_are_convolved():
    x, w, b = _operands(channels=64, pixels=3000)
    session, y = _session(x, w, b)
    assert "addmm" not in calls(session)
    np.testing.assert_allclose(y, _wanted(x, w, b), 1e-4, 1e-4)
    x, w, b = _operands()
    pair = np.concatenate([x, -x])
    _, y = _session(pair, w, b)
    np.testing.assert_allclose(y, _wanted(pair, w, b), 1e-5, 1e-5)
