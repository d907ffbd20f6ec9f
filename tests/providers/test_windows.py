"""Windows with gaps, uneven pads and sizes rounded up: what the standard's formulas say, on every provider."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ontrain
from tests.training.conftest import PROVIDERS

SIZE = 9


def results(
    provider: str, op_type: str, feeds: dict[str, np.ndarray], names: list[str], **attributes: object
) -> list[np.ndarray]:
    """The results of one operator; the second one's are whole numbers."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in feeds.items()]
    kinds = (TensorProto.FLOAT, TensorProto.INT64)
    outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(names, kinds, strict=False)]
    graph = helper.make_graph([helper.make_node(op_type, list(feeds), names, **attributes)], "g", values, outputs)
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return ontrain.InferenceSession(file.SerializeToString(), providers=[provider]).run(None, feeds)


def node_file(op_type: str, x: np.ndarray, w: np.ndarray, **attributes: object) -> bytes:
    """A file of one operator whose second operand is a weight, for inputs of any size."""
    node, place = helper.make_node(op_type, ["x", "w"], ["z"], **attributes), [None] * x.ndim
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, place) for name in "xz"]
    graph = helper.make_graph([node], "g", values[:1], values[1:], [numpy_helper.from_array(w, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10).SerializeToString()


def run(provider: str, op_type: str, x: np.ndarray, w: np.ndarray | None = None, **attributes: object) -> np.ndarray:
    return results(provider, op_type, {"x": x} | ({} if w is None else {"w": w}), ["z"], **attributes)[0]


def pads_of(mode: str, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """The standard's `pad_shape` of an axis of SIZE elements."""
    total = max(0, (math.ceil(SIZE / stride) - 1) * stride + (kernel - 1) * dilation + 1 - SIZE)
    small, large = total // 2, total - total // 2
    return (small, large) if mode == "SAME_UPPER" else (large, small)


def windows(mode: str, pads: tuple[int, int], kernel: int, stride: int, dilation: int, ceil: bool) -> list[np.ndarray]:
    """Places that each window of an axis sees, those in the pads too."""
    if mode.startswith("SAME"):
        pads, count = pads_of(mode, kernel, stride, dilation), math.ceil(SIZE / stride)
    else:
        steps = (SIZE + sum(pads) - (kernel - 1) * dilation - 1) / stride
        count = (math.ceil(steps) if ceil else math.floor(steps)) + 1
    starts = [o * stride - pads[0] for o in range(count)]
    # "Sliding windows that would start in the right padded region are ignored."
    return [start + np.arange(kernel) * dilation for start in starts if start < SIZE or mode.startswith("SAME")]


def pooled(op_type: str, x: np.ndarray, seen: list[np.ndarray], pads: tuple[int, int], included: bool) -> np.ndarray:
    columns = []
    for places in seen:
        inside = x[..., places[(places >= 0) & (places < SIZE)]]
        counted = ((places >= -pads[0]) & (places < SIZE + pads[1])).sum() if included else inside.shape[-1]
        columns.append(
            inside.max(-1) if op_type == "MaxPool"
            else np.sqrt((inside**2).sum(-1)) if op_type == "LpPool"
            else inside.sum(-1) / counted
        )  # fmt: skip
    return np.stack(columns, -1)


CASES = [
    ("NOTSET", pads, stride, dilation, ceil)
    for pads, stride, dilation, ceil in itertools.product(((0, 0), (2, 2), (0, 2), (1, 0)), (2, 3), (1, 2), (0, 1))
] + [
    (mode, (0, 0), stride, dilation, ceil)
    for mode, stride, dilation, ceil in itertools.product(("SAME_UPPER", "SAME_LOWER", "VALID"), (2, 3), (1, 2), (0, 1))
]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("op_type", ["AveragePool", "AveragePool with pads", "MaxPool", "LpPool"])
@pytest.mark.sampled(2)
def test_windows_are_where_the_standard_puts_them(provider, op_type, rng):
    op_type, _, included = op_type.partition(" with ")
    x = rng.standard_normal((2, 2, SIZE)).astype(np.float32)
    for mode, pads, stride, dilation, ceil in CASES:
        place = {"pads": list(pads)} if mode == "NOTSET" else {"auto_pad": mode}
        counted = {"count_include_pad": 1} if included else {}
        z = run(provider, op_type, x, kernel_shape=[3], strides=[stride], dilations=[dilation], ceil_mode=ceil,
                **place, **counted)  # fmt: skip
        seen = windows(mode, pads, 3, stride, dilation, bool(ceil))
        around = pads_of(mode, 3, stride, dilation) if mode.startswith("SAME") else pads
        expected = pooled(op_type, x, seen, around, bool(included))
        np.testing.assert_allclose(
            z, expected, rtol=1e-5, atol=1e-5, err_msg=f"{mode} {pads} {stride} {dilation} {ceil}"
        )


@pytest.mark.parametrize("provider", PROVIDERS[:2])
@pytest.mark.parametrize("op_type", ["AveragePool", "MaxPool", "LpPool"])
def test_an_image_that_is_too_small_by_less_than_a_stride_has_one_window(provider, op_type, rng):
    x = rng.standard_normal((1, 2, 2, SIZE)).astype(np.float32)
    z = run(provider, op_type, x, kernel_shape=[4, 3], strides=[3, 2])
    columns = [x[..., places].reshape(1, 2, -1) for places in windows("NOTSET", (0, 0), 3, 2, 1, False)]
    means = {
        "AveragePool": lambda v: v.mean(-1),
        "MaxPool": lambda v: v.max(-1),
        "LpPool": lambda v: np.sqrt((v**2).sum(-1)),
    }
    np.testing.assert_allclose(z[:, :, 0], np.stack([means[op_type](v) for v in columns], -1), rtol=1e-5)
    assert z.shape == (1, 2, 1, len(columns))


@pytest.mark.parametrize("op_type", ["AveragePool", "MaxPool", "LpPool"])
def test_an_image_that_is_too_small_by_a_stride_has_no_window(op_type, rng):
    x = rng.standard_normal((1, 2, 2, SIZE)).astype(np.float32)
    assert run("TorchExecutionProvider", op_type, x, kernel_shape=[4, 3], strides=[2, 2]).shape == (1, 2, 0, 4)


def test_the_maxima_of_images_too_small_for_a_window_have_places(rng):
    x = rng.standard_normal((1, 2, 2, SIZE)).astype(np.float32)
    settings = {"kernel_shape": [4, 3], "strides": [3, 2]}
    y, places = results("TorchExecutionProvider", "MaxPool", {"x": x}, ["z", "places"], **settings)
    assert y.shape == (1, 2, 1, 4)
    np.testing.assert_array_equal(x.ravel()[places], y)


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("places", [False, True], ids=["maxima", "places"])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (0, 1, 2, 0)], ids=["", "pads"])
def test_maxima_of_whole_numbers_whose_channels_lie_last(kind, places, pads, rng):
    """A convolution leaves its channels last; a plane has more places than a number of eight bits."""
    code, outputs = helper.np_dtype_to_tensor_dtype(np.dtype(kind)), ["z", *(["places"] if places else [])]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Cast", ["c"], ["q"], to=code),
        helper.make_node("MaxPool", ["q"], outputs, kernel_shape=[3, 3], pads=pads),
    ]  # fmt: skip
    ends = [
        helper.make_tensor_value_info(name, kind, None)
        for name, kind in zip(outputs, (code, TensorProto.INT64), strict=False)
    ]
    w = numpy_helper.from_array(rng.uniform(-9, 9, (16, 3, 1, 1)).astype(np.float32), "w")
    x = rng.standard_normal((1, 3, 24, 40)).astype(np.float32)
    start = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    graph = helper.make_graph(nodes, "g", [start], ends, [w])
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    y, *rest = ontrain.InferenceSession(file, providers=["TorchExecutionProvider"]).run(None, {"x": abs(x)})
    q = ontrain.InferenceSession(file, providers=["TorchExecutionProvider"]).run(["q"], {"x": abs(x)})[0]
    padded = np.pad(q, [(0, 0), (0, 0), pads[::2], pads[1::2]], constant_values=np.iinfo(kind).min)
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    np.testing.assert_array_equal(y, views.max((-2, -1)))
    for at in rest:
        np.testing.assert_array_equal(q.ravel()[at], y)


@pytest.mark.parametrize("tail", [(), (1,), (7,)], ids=["line", "column", "image"])
def test_an_image_that_is_too_small_for_a_filter_is_refused(tail, rng):
    """Whatever kernel would take it: none may read what lies behind the image."""
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 4, 1, *tail), (5, 4, 2, *[1] * len(tail))))
    content = node_file("Conv", x, w, strides=[2] * (1 + len(tail)))
    session = ontrain.InferenceSession(content, providers=["TorchExecutionProvider"])
    with pytest.raises(ontrain.InputError, match="too small for Conv"):
        session.run(None, {"x": x})


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_axes_of_a_mean_with_gaps_are_not_mixed_up(provider, rng):
    x = rng.standard_normal((1, 2, SIZE, SIZE)).astype(np.float32)
    z = run(provider, "AveragePool", x, kernel_shape=[3, 2], strides=[2, 3], dilations=[2, 1], pads=[0, 1, 2, 0])
    down, across = windows("NOTSET", (0, 2), 3, 2, 2, False), windows("NOTSET", (1, 0), 2, 3, 1, False)
    for (i, rows), (j, columns) in itertools.product(enumerate(down), enumerate(across)):
        rows, columns = (places[(places >= 0) & (places < SIZE)] for places in (rows, columns))
        np.testing.assert_allclose(z[..., i, j], x[..., rows, :][..., columns].mean((-2, -1)), rtol=1e-5, atol=1e-5)
    assert z.shape == (1, 2, len(down), len(across))


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_with_gaps_finds_its_pads(provider, mode, stride, rng):
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, SIZE), (4, 3, 3)))
    z = run(provider, "Conv", x, w, auto_pad=mode, strides=[stride], dilations=[2])
    padded = np.pad(x, [(0, 0), (0, 0), pads_of(mode, 3, stride, 2)])
    expected = [
        np.einsum("nck,mck->nm", padded[..., start + 2 * np.arange(3)], w)
        for start in range(0, math.ceil(SIZE / stride) * stride, stride)
    ]
    np.testing.assert_allclose(z, np.stack(expected, -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("pads", [(1, 0, 0, 2), (2, 1, 1, 0)])
def test_maxima_are_where_their_places_say_in_spite_of_uneven_pads(provider, pads, rng):
    x = rng.standard_normal((2, 3, SIZE, SIZE - 2)).astype(np.float32)
    settings = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": list(pads)}
    y, places = results(provider, "MaxPool", {"x": x}, ["z", "places"], **settings)
    np.testing.assert_array_equal(x.ravel()[places], y)
    # Each image has its own, within its own bounds.
    planes = places // (SIZE * (SIZE - 2))
    assert (planes == np.arange(6).reshape(2, 3, 1, 1)).all()


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("op_type", ["Conv", "AveragePool", "MaxPool"])
@pytest.mark.parametrize(
    "stated", [[2, 3, SIZE + 1], [2, 4, 4], [2, 3 * SIZE], [0, 0, 0], [2, 3, 2**40], ["a", "b", "c"]]
)
def test_shapes_that_a_file_states_wrongly_change_nothing(provider, op_type, stated, rng):
    feeds = {"x": rng.standard_normal((2, 3, SIZE)).astype(np.float32)}
    settings = {} if op_type == "Conv" else {"kernel_shape": [2]}
    if op_type == "Conv":
        feeds["w"] = rng.standard_normal((4, 3, 2)).astype(np.float32)
    (expected,) = results(provider, op_type, feeds, ["z"], **settings)
    operands = ["h", *list(feeds)[1:]]
    nodes = [
        helper.make_node("Identity", ["x"], ["h"]), helper.make_node(op_type, operands, ["y"], **settings),
        helper.make_node("Identity", ["y"], ["z"]),
    ]  # fmt: skip
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in feeds.items()]
    wrong = [helper.make_tensor_value_info(name, TensorProto.FLOAT, stated) for name in "hy"]
    output = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", values, [output], value_info=wrong)
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    (z,) = ontrain.InferenceSession(file.SerializeToString(), providers=[provider]).run(None, feeds)
    np.testing.assert_allclose(z, expected, rtol=1e-6)
