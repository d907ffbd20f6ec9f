"""Products and convolutions of eight-bit numbers: every digit of numpy's whole numbers, however large a sum may be."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ontrain
from tests.providers.torch.lowering.files import assert_as_onnxruntime, calls, file_of

pytestmark = pytest.mark.usefixtures("units")

TYPES = {"uint8": (0, 255), "int8": (-128, 127)}


def _session(kind, shapes, weights, **attributes):
    """A node whose operands in `weights` are initializers, and whose others are fed."""
    dtypes = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in {**shapes, **weights}.items()}
    names = ["a", "b", "a_zero", "b_zero"]
    node = helper.make_node(kind, [n if n in dtypes else "" for n in names], ["y"], **attributes)
    graph = helper.make_graph(
        [node], "whole", [helper.make_tensor_value_info(n, dtypes[n], array.shape) for n, array in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
        [numpy_helper.from_array(array, n) for n, array in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return ontrain.InferenceSession(model.SerializeToString(), providers=["TorchExecutionProvider"])


def _numbers(kind, shape, *, extreme, seed):
    """Numbers of a type: any, or its largest, of which sums are as large as they can be."""
    low, high = TYPES[kind]
    rng = np.random.default_rng(seed)
    return (np.full(shape, high) if extreme else rng.integers(low, high + 1, shape)).astype(kind)


SHAPES = (2, 5, 700), (700, 7)
"""Sums of 700 products pass 2²⁴, from which on float32 lacks numbers."""
ZEROS = {"none": (None, None), "one each": ((), ()), "one a row and a column": ((5,), (7,)), "of a only": ((), None)}


@pytest.mark.parametrize("extreme", [False, True], ids=["any", "largest"])
@pytest.mark.parametrize("fixed", [True, False], ids=["a weight", "fed"])
@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"), ("int8", "uint8")], ids=str)
def test_products_are_those_of_whole_numbers(kinds, zeros, fixed, extreme):
    a, b = (_numbers(k, s, extreme=extreme, seed=i) for i, (k, s) in enumerate(zip(kinds, SHAPES, strict=True)))
    fed, held = ({"a": a}, {"b": b}) if fixed else ({"a": a, "b": b}, {})
    wanted = [a.astype(np.int64), b.astype(np.int64)]
    for i, (name, kind, shape) in enumerate(zip(("a_zero", "b_zero"), kinds, ZEROS[zeros], strict=True)):
        if shape is not None:
            zero = np.asarray(_numbers(kind, shape, extreme=False, seed=9 + i))
            held[name] = zero
            wanted[i] = wanted[i] - (zero[:, None] if i == 0 and zero.ndim else zero).astype(np.int64)
    (y,) = _session("MatMulInteger", fed, held).run(None, fed)
    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, wanted[0] @ wanted[1])


@pytest.mark.parametrize("shapes", [((3, 4), (4,)), ((4,), (4, 5)), ((2, 3, 4), (2, 4, 5))], ids=str)
def test_vectors_and_batches_are_multiplied_too(shapes):
    a, b = (_numbers("uint8", shape, extreme=False, seed=i) for i, shape in enumerate(shapes))
    (y,) = _session("MatMulInteger", {"a": a}, {"b": b}).run(None, {"a": a})
    np.testing.assert_array_equal(y, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("columns", [False, True], ids=["one scale", "a scale a column"])
@pytest.mark.parametrize("fixed", [True, False], ids=["a weight", "fed"])
@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")], ids=str)
def test_products_that_become_bytes_are_one_call(kinds, fixed, columns, units):
    rng = np.random.default_rng(1)
    a, b = (_numbers(kind, shape, extreme=False, seed=i) for i, (kind, shape) in
            enumerate(zip(kinds, ((2, 5, 70), (70, 7)), strict=True)))  # fmt: skip
    many = (7,) if columns else ()
    held = {
        "as": np.float32(0.02), "az": _numbers(kinds[0], (), extreme=False, seed=2),
        "bs": rng.uniform(0.01, 0.02, many).astype(np.float32), "bz": _numbers(kinds[1], many, extreme=False, seed=3),
        "ys": np.float32(0.5), "yz": _numbers(kinds[0], (), extreme=False, seed=4),
    }  # fmt: skip
    fed, held = ({"a": a}, held | {"b": b}) if fixed else ({"a": a, "b": b}, held)
    nodes = [helper.make_node("QLinearMatMul", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["q"]),
             helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT)]  # fmt: skip
    model = file_of(nodes, fed, {name: np.asarray(array) for name, array in held.items()}, ["y"])
    names = calls(assert_as_onnxruntime(model, fed, rtol=0, atol=0 if units else 1))
    assert ("onnxruntime_QLinearMatMul" in names) == units


WINDOWS = {
    "plain": {}, "pads": {"pads": [1, 2, 1, 2]}, "uneven pads": {"pads": [0, 1, 2, 0]},
    "strides": {"strides": [2, 1]}, "dilations": {"dilations": [2, 2]}, "groups": {"group": 2},
}  # fmt: skip


def _convolved(x, w, pads=(0, 0, 0, 0), strides=(1, 1), dilations=(1, 1), group=1):
    """The definition, in 64 bits."""
    x = np.pad(x, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    (m, share, kh, kw), (dh, dw) = w.shape, dilations
    sizes = [
        (n - d * (k - 1) - 1) // s + 1 for n, d, k, s in zip(x.shape[2:], dilations, (kh, kw), strides, strict=True)
    ]
    y = np.zeros((x.shape[0], m, *sizes), np.int64)
    for i, j in np.ndindex(kh, kw):
        part = x[:, :, i * dh :, j * dw :][:, :, :: strides[0], :: strides[1]][:, :, : sizes[0], : sizes[1]]
        for g in range(group):
            rows, channels = slice(g * m // group, (g + 1) * m // group), slice(g * share, (g + 1) * share)
            y[:, rows] += np.einsum("nchw,mc->nmhw", part[:, channels], w[rows, :, i, j])
    return y


@pytest.mark.parametrize("channels", [4, 128])
@pytest.mark.parametrize("fixed", [True, False], ids=["a weight", "fed"])
@pytest.mark.parametrize("windows", WINDOWS)
def test_convolutions_are_those_of_whole_numbers(windows, fixed, channels):
    a = WINDOWS[windows]
    x = _numbers("uint8", (2, channels, 9, 8), extreme=channels > 4, seed=0)
    w = _numbers("int8", (6, channels // a.get("group", 1), 3, 3), extreme=channels > 4, seed=1)
    zeros = {"a_zero": np.array(7, np.uint8), "b_zero": np.array([-3, 0, 5, 9, -128, 1], np.int8)}
    fed, held = ({"a": x}, {"b": w}) if fixed else ({"a": x, "b": w}, {})
    (y,) = _session("ConvInteger", fed, {**held, **zeros}, **a).run(None, fed)
    wide = w.astype(np.int64) - zeros["b_zero"].astype(np.int64).reshape(-1, 1, 1, 1)
    # What is padded is the zero point, which counts nothing.
    np.testing.assert_array_equal(y, _convolved(x.astype(np.int64) - 7, wide, **a))


@pytest.mark.parametrize("extreme", [False, True], ids=["any", "largest"])
@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("uint8", "uint8")], ids=str)
@pytest.mark.parametrize("windows", WINDOWS)
def test_a_small_convolution_by_filters_of_one_zero_point_is_one_call(windows, kinds, extreme, units):
    a = WINDOWS[windows]
    x = _numbers(kinds[0], (2, 4, 9, 8), extreme=extreme, seed=0)
    w = _numbers(kinds[1], (6, 4 // a.get("group", 1), 3, 3), extreme=extreme, seed=1)
    held = {"b": w, "a_zero": np.array(7, kinds[0]), "b_zero": np.array(3, kinds[1])}
    session = _session("ConvInteger", {"a": x}, held, **a)
    (y,) = session.run(None, {"a": x})
    np.testing.assert_array_equal(y, _convolved(x.astype(np.int64) - 7, w.astype(np.int64) - 3, **a))
    assert (calls(session) == ["onnxruntime_ConvInteger"]) == units


def test_plans_of_many_sizes_share_a_weight():
    w = _numbers("int8", (16, 8), extreme=False, seed=1)
    dtype = TensorProto.UINT8
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b"], ["y"])], "whole",
        [helper.make_tensor_value_info("a", dtype, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, ["n", 8])], [numpy_helper.from_array(w, "b")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = ontrain.InferenceSession(model.SerializeToString(), providers=["TorchExecutionProvider"])
    for rows in (3, 4, 5, 3):
        a = _numbers("uint8", (rows, 16), extreme=False, seed=rows)
        np.testing.assert_array_equal(session.run(None, {"a": a})[0], a.astype(np.int64) @ w.astype(np.int64))
    assert len(session._own._session._state.weights._derived) <= 2
