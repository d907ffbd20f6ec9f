"""Operators whose results are as long as values say, against stock onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import ontrain
from ontrain import ProviderError

GRAPH = """<ir_version: 8, opset_import: ["" : 11]>
m (float[n, b, 4] boxes, float[n, c, b] scores, int64[1] most, float[1] overlap, float[1] least)
=> (int64[k, 3] kept) {
    kept = NonMaxSuppression<center_point_box = %d>(boxes, scores, most, overlap, least)
}"""


def sessions(centred: int) -> tuple[ontrain.InferenceSession, onnxruntime.InferenceSession]:
    model = onnx.parser.parse_model(GRAPH % centred).SerializeToString()
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return ontrain.InferenceSession(model, providers=["TorchExecutionProvider"]), theirs


def feeds(
    count: int, *, steps: int, most: int = 1000, overlap: float = 0.5, least: float = 0.2
) -> dict[str, np.ndarray]:
    """Boxes and scores on a grid of so many steps: few steps make equal scores, and boxes of no area."""
    random = np.random.default_rng(count)
    boxes, scores = (np.floor(random.random(shape) * steps) / steps for shape in ((2, count, 4), (2, 3, count)))
    return {
        "boxes": boxes.astype(np.float32), "scores": scores.astype(np.float32), "most": np.array([most]),
        "overlap": np.array([overlap], np.float32), "least": np.array([least], np.float32),
    }  # fmt: skip


@pytest.mark.parametrize("centred", [0, 1], ids=["corners", "centred"])
@pytest.mark.parametrize("steps", [4, 1 << 20])
def test_kept_boxes_are_onnxruntimes_however_many_there_are(centred, steps):
    mine, theirs = sessions(centred)
    for count, most in ((0, 5), (1, 5), (50, 3), (128, 1000), (300, 1000), (300, 140), (700, 0), (20, -1)):
        for overlap in (0.0, 0.3, 1.0):
            fed = feeds(count, steps=steps, most=most, overlap=overlap)
            np.testing.assert_array_equal(mine.run(None, fed)[0], theirs.run(None, fed)[0])


@pytest.mark.parametrize("extreme", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("name", ["boxes", "scores"])
@pytest.mark.parametrize("centred", [0, 1], ids=["corners", "centred"])
def test_kept_boxes_are_onnxruntimes_whatever_numbers_they_have(centred, name, extreme):
    mine, theirs = sessions(centred)
    fed = feeds(40, steps=1 << 20, overlap=0.3)
    fed[name].reshape(-1)[::7] = extreme
    np.testing.assert_array_equal(mine.run(None, fed)[0], theirs.run(None, fed)[0])


@pytest.mark.parametrize("overlap", [-0.1, 1.5, np.nan])
def test_an_overlap_beyond_0_and_1_is_refused(overlap):
    mine, theirs = sessions(0)
    fed = feeds(5, steps=4, overlap=overlap)
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail):
        theirs.run(None, fed)
    with pytest.raises(ProviderError, match="iou_threshold is") as caught:
        mine.run(None, fed)
    assert isinstance(caught.value, onnxruntime.capi.onnxruntime_pybind11_state.Fail)
