"""Settings of operators that files seldom have, on the torch provider beside stock onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import ontrain

Arrays = list[tuple[str, np.ndarray[Any, Any]]]
LEAST, MOST = -(2**62), 2**62


def _int(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def _numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).uniform(0.5, 2, shape).astype(np.float32)


def _slice(start: int, end: int, step: int) -> tuple[str, Arrays, dict[str, Any]]:
    bounds = [("starts", _int(start)), ("ends", _int(end)), ("axes", _int(1)), ("steps", _int(step))]
    return "Slice", [("x", _numbers(2, 5)), *bounds], {}


def _unreduced(op_type: str, keepdims: int) -> tuple[str, Arrays, dict[str, Any]]:
    return op_type, [("x", _numbers(2, 3))], {"noop_with_empty_axes": 1, "keepdims": keepdims}


def _with_holes(places: str, number: float, *sizes: int) -> tuple[str, Arrays, dict[str, Any]]:
    image = np.random.default_rng(2).standard_normal((1, 2, 6, 7)).astype(np.float32)
    image[0, 0, 1, 2] = number
    ways = {"mode": "cubic", "coordinate_transformation_mode": places}
    return "Resize", [("x", image), ("", _int()), ("", _int()), ("sizes", _int(1, 2, *sizes))], ways


def _resized(scales: list[float], **attributes: Any) -> tuple[str, Arrays, dict[str, Any]]:
    factors = np.array([1, 1, *scales], np.float32)
    return "Resize", [("x", _numbers(1, 2, 4, 5)), ("", _int()), ("scales", factors)], attributes


CASES = {
    "backwards from before the first": _slice(-9, LEAST, -1),
    "backwards by two from before the first": _slice(-7, LEAST, -2),
    "backwards from behind the last": _slice(9, LEAST, -2),
    "backwards to the last": _slice(3, -1, -1),
    "forwards to far before the first": _slice(2, LEAST, 1),
    "forwards by three to far before the first": _slice(-3, LEAST, 3),
    "forwards from far before the first": _slice(LEAST, MOST, 2),
    **{
        f"{op_type} of no axes, keepdims {keep}": _unreduced(op_type, keep)
        for op_type in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare", "ReduceProd", "ReduceLogSumExp")
        for keep in (0, 1)
    },
    "an inverse transform of real numbers": (
        "DFT", [("x", _numbers(2, 6, 1)), ("", _int()), ("axis", np.array(1))], {"inverse": 1},
    ),
    **{
        f"cubic by {places} to {sizes}, {number} in the image": _with_holes(places, number, *sizes)
        for places in ("half_pixel", "pytorch_half_pixel", "align_corners")
        for sizes in ((12, 14), (4, 5), (9, 7))
        for number in (np.nan, np.inf)
    },
    "scales that leave all sizes": _resized([1.1, 1.1], mode="linear"),
    "scales that leave all sizes, nearest": _resized([1.2, 1.15], mode="nearest", nearest_mode="ceil"),
    "scales that leave one size": _resized([1.1, 2.0], mode="linear"),
    "scales that leave one size, filtered": _resized([1.1, 2.0], mode="cubic", antialias=1),
    "scales that leave one size, filtered smaller": _resized([0.5, 1.1], mode="linear", antialias=1),
}  # fmt: skip


@pytest.mark.parametrize("settings", ["constant", "fed"])
@pytest.mark.parametrize(("op_type", "arrays", "attributes"), CASES.values(), ids=CASES)
def test_results_are_stocks(
    op_type: str, arrays: Arrays, attributes: dict[str, Any], settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONTRAIN_JOIN", "0")  # or onnxruntime would run it
    named = {name: array for name, array in arrays if name}
    stored = [name for name in named if name != "x"] if settings == "constant" else []
    feeds = {name: array for name, array in named.items() if name not in stored}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    weights = [numpy_helper.from_array(named[name], name) for name in stored]
    node = helper.make_node(op_type, [name for name, _ in arrays], ["y"], **attributes)
    graph = helper.make_graph([node], "rare", inputs, [onnx.ValueInfoProto(name="y")], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()
    (expected,) = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    (actual,) = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"]).run(None, feeds)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6, strict=True)
