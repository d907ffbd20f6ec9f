"""Feeds and names in forms that onnxruntime takes although a file says otherwise, and those that nobody takes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import ontrain
from ontrain.errors import InputError
from tests.training.conftest import PROVIDERS

EVERYWHERE = pytest.mark.parametrize("provider", ["CPUExecutionProvider", *PROVIDERS])
OWN = pytest.mark.parametrize("provider", PROVIDERS)
X = np.array([[1.0, -2.0, 0.5]], np.float32)


def model(graph: str) -> bytes:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {graph}').SerializeToString()


def both(content: bytes, provider: str, feeds: dict[str, object]) -> list[list[np.ndarray]]:
    sessions = (
        onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]),
        ontrain.InferenceSession(content, providers=[provider]),
    )
    return [session.run(None, feeds) for session in sessions]


@OWN
@pytest.mark.parametrize("fed", [[2.0], [[3.0]], [1.0, 2.0]], ids=str)
def test_a_scalar_may_have_sizes_as_in_onnxruntime(provider, fed):
    """Programs feed a rate as `np.array([16000])` where the file states a scalar."""
    content = model("""(float rate, float[n] x) => (float y, float[n] z, float both) {
        y = Mul (rate, rate)
        z = Relu (x)
        both = Add (y, z)
    }""")
    feeds = {"rate": np.array(fed, np.float32), "x": np.array([1.0, -1.0], np.float32)}
    for _ in range(2):
        theirs, ours = both(content, provider, feeds)
        assert [a.shape for a in ours] == [a.shape for a in theirs]
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
    scalar = {**feeds, "rate": np.array(2, np.float32)}
    assert [a.shape for a in both(content, provider, scalar)[1]] == [(), (2,), (2,)]


@OWN
def test_a_scalar_with_sizes_beside_one_name_for_two_sizes(provider):
    content = model("""(float rate, float[n] x, float[n] z) => (float y) {
        h = Concat <axis: int = 0> (x, z)
        y = Mul (h, rate)
    }""")
    x, z = np.ones(2, np.float32), np.ones(3, np.float32)
    ours = ontrain.InferenceSession(content, providers=[provider])
    for rate in (np.array(2, np.float32), np.array([2], np.float32)):
        (y,) = ours.run(None, {"rate": rate, "x": x, "z": z})
        np.testing.assert_array_equal(y, np.full(5, 2, np.float32))


@OWN
def test_other_ranks_than_a_scalars_are_checked(provider):
    session = ontrain.InferenceSession(
        model("(float[n, 3] x) => (float[n, 3] y) { y = Relu (x) }"), providers=[provider]
    )
    with pytest.raises(InputError, match=r"'x' has shape \[3\]"):
        session.run(None, {"x": X[0]})


@EVERYWHERE
def test_names_out_of_a_generator_are_read_once(provider):
    session = ontrain.InferenceSession(
        model("(float[n, 3] x) => (float[n, 3] y, float[n, 3] z) { y = Relu (x)  z = Neg (x) }"), providers=[provider]
    )
    for _ in range(4):
        (z,) = session.run((name for name in ["z"]), {"x": X})
        np.testing.assert_array_equal(z, -X)
    if provider != "CPUExecutionProvider":
        values = session.run_with_ort_values(iter(["z"]), {"x": ontrain.OrtValue.ortvalue_from_numpy(X)})
        np.testing.assert_array_equal(values[0].numpy(), -X)


@EVERYWHERE
def test_none_for_an_initializer_leaves_it_as_it_is(provider):
    content = model("(float[n, 3] x, float[3] w) => (float[n, 3] y) <float[3] w = {1, 2, 3}> { y = Mul (x, w) }")
    session = ontrain.InferenceSession(content, providers=[provider])
    assert [value.name for value in session.get_overridable_initializers()] == ["w"]
    (y,) = session.run(None, {"x": X, "w": None})
    np.testing.assert_array_equal(y, X * np.array([1, 2, 3], np.float32))


@EVERYWHERE
@pytest.mark.parametrize(
    "fed",
    [torch.tensor(X).to_sparse(), torch.quantize_per_tensor(torch.tensor(X), 0.1, 0, torch.quint8),
     torch.empty(1, 3, device="meta")],
    ids=["sparse", "quantised", "meta"],
)  # fmt: skip
def test_tensors_without_plain_numbers_are_refused_as_feeds(provider, fed):
    session = ontrain.InferenceSession(
        model("(float[n, 3] x) => (float[n, 3] y) { y = Relu (x) }"), providers=[provider]
    )
    with pytest.raises((InputError, RuntimeError)) as caught:
        session.run(None, {"x": fed})
    assert isinstance(caught.value, ontrain.OntrainError)
