"""Operators that onnxruntime computes in a fraction of the time are calls of its kernels where a graph serves."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import ontrain
from ontrain.operators import OPERATORS, Outrun
from ontrain.providers.torch.lowering import stock_alone
from tests.providers.torch.lowering.files import assert_as_onnxruntime, calls, file_of

pytestmark = pytest.mark.usefixtures("joined")
NGRAMS = {
    "mode": "TFIDF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1, "ngram_counts": [0, 3],
    "ngram_indexes": [0, 1, 2, 4, 3], "pool_int64s": [1, 2, 3, 1, 2, 3, 1], "weights": [1.0, 0.5, 2.0, 1.5, 3.0],
}  # fmt: skip


def regions(rng, count, size=20.0):
    corners = rng.uniform(0, size, (count, 2, 2))
    return np.concatenate([corners.min(1), corners.max(1)], 1).astype(np.float32)


def file(rng, op_type):
    """A file of a node of an operator, and its feeds."""
    x, weights, attributes, outputs = rng.standard_normal((2, 3, 24, 24)).astype(np.float32), {}, {}, ["y"]
    fed = {"x": x}
    if op_type == "TopK":
        x[0, 0, 0] = np.round(x[0, 0, 0])  # of equal numbers the first comes first
        weights, outputs = {"k": np.array([5])}, ["y", "places"]
    elif op_type == "RoiAlign":
        fed |= {"regions": regions(rng, 7), "images": rng.integers(0, 2, 7)}
        attributes = {"output_height": 3, "output_width": 4, "sampling_ratio": 2}
    elif op_type == "MaxRoiPool":
        fed["regions"] = np.concatenate([rng.integers(0, 2, (7, 1)), regions(rng, 7)], 1).astype(np.float32)
        attributes = {"pooled_shape": [3, 4]}
    elif op_type == "Col2Im":
        fed = {"x": rng.standard_normal((2, 3 * 6, 20)).astype(np.float32)}
        weights = {"image": np.array([6, 6]), "block": np.array([2, 3])}
    elif op_type == "DeformConv":
        fed |= {"w": rng.standard_normal((5, 3, 3, 3)).astype(np.float32),
                "offset": rng.standard_normal((2, 18, 22, 22)).astype(np.float32)}  # fmt: skip
    elif op_type == "MaxUnpool":
        fed["places"] = np.sort(rng.integers(0, 2 * 3 * 48 * 48, x.shape))
        attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    elif op_type == "AveragePool":
        attributes = {"kernel_shape": [3, 2], "dilations": [2, 3], "strides": [2, 1], "ceil_mode": 1}
    elif op_type == "Resize":
        weights = {"region": np.zeros(0, np.float32), "scales": np.array([1, 1, 0.4, 1.7], np.float32)}
        attributes = {"mode": "linear"}
    elif op_type == "ReverseSequence":
        fed["lengths"] = np.array([1, 2, 2])
        attributes = {"batch_axis": 1, "time_axis": 0}
    elif op_type == "TfIdfVectorizer":
        fed, attributes = {"x": rng.integers(0, 4, (6, 9))}, NGRAMS
    node = helper.make_node(op_type, [*fed, *weights], outputs, **attributes)
    return file_of([node], fed, weights, ["y"], opset=19), fed


def alone():
    return [name for (_, name), record in OPERATORS.items() if record.outrun is Outrun.ALONE]


@pytest.mark.parametrize("op_type", alone())
def test_a_node_is_one_call_with_onnxruntimes_numbers(rng, op_type):
    session = assert_as_onnxruntime(*file(rng, op_type), rtol=1e-5, atol=1e-6)
    assert f"onnxruntime_{op_type}" in calls(session)


@pytest.mark.parametrize("op_type", alone())
def test_by_ontrains_own_kernels_the_numbers_are_the_same(rng, op_type, monkeypatch):
    model, fed = file(rng, op_type)
    monkeypatch.setenv("ONTRAIN_JOIN", "0")
    session = assert_as_onnxruntime(model, fed, rtol=1e-4, atol=1e-5)
    assert f"onnxruntime_{op_type}" not in calls(session)


@pytest.mark.parametrize("offset", [np.nan, np.inf, -np.inf, 1e38, -3e9, 2147483648.0])
def test_offsets_far_outside_of_the_image_read_nothing(rng, offset):
    model, fed = file(rng, "DeformConv")
    fed["offset"][rng.random(fed["offset"].shape) < 0.5] = offset
    session = assert_as_onnxruntime(model, fed, rtol=1e-5, atol=1e-6)
    assert "onnxruntime_DeformConv" in calls(session)


@pytest.mark.parametrize("place", [-(2**63), -1, 2 * 3 * 48 * 48, 2**62])
def test_a_place_outside_of_the_result_is_refused(rng, place):
    model, fed = file(rng, "MaxUnpool")
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])
    session.run(None, fed)
    fed["places"][1, 2, 3, 4] = place
    with pytest.raises(ValueError, match="MaxUnpool"):
        session.run(None, fed)


def test_an_onnxruntime_without_the_kernel_leaves_the_node_to_its_body(rng, monkeypatch):
    model, fed = file(rng, "DeformConv")
    monkeypatch.setattr(stock_alone, "_opens", lambda *_: False)
    session = assert_as_onnxruntime(model, fed, rtol=1e-4, atol=1e-5)
    assert "onnxruntime_DeformConv" not in calls(session)


def test_images_with_their_channels_last_stay_with_atens_mean(rng):
    fed = {"x": rng.standard_normal((1, 32, 64, 64)).astype(np.float32)}
    weights = {"w": rng.standard_normal((32, 32, 3, 3)).astype(np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["images"]),
        helper.make_node("AveragePool", ["images"], ["y"], kernel_shape=[2, 2]),
    ]
    session = assert_as_onnxruntime(file_of(nodes, fed, weights, ["y"], opset=19), fed, rtol=1e-3, atol=1e-3)
    assert "onnxruntime_AveragePool" not in calls(session)


@pytest.mark.parametrize("op_type", ["RoiAlign", "MaxRoiPool"])
@pytest.mark.parametrize(("fault", "told"), [(5, "image 5"), (-3, "image -3"), (np.nan, "no finite")])
def test_a_region_of_no_image_is_refused(rng, op_type, fault, told):
    model, fed = file(rng, op_type)
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])
    session.run(None, fed)
    if np.isfinite(fault) and op_type == "RoiAlign":
        fed["images"][2] = fault
    else:
        fed["regions"][2, 0] = fault
    with pytest.raises(ValueError, match=f"{op_type} has a region .*{told}"):
        session.run(None, fed)


def test_what_need_not_be_in_order_stays_with_atens_kernel(rng):
    fed = {"x": rng.standard_normal((4, 50)).astype(np.float32)}
    node = helper.make_node("TopK", ["x", "k"], ["y", "places"], sorted=0)
    model = file_of([node], fed, {"k": np.array([3])}, ["y"], opset=18)
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])
    (largest,) = session.run(None, fed)
    wanted = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, fed)[0]
    np.testing.assert_array_equal(np.sort(largest), np.sort(wanted))
    assert "onnxruntime_TopK" not in calls(session)
