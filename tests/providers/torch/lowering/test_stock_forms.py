"""Images in another size in a row of small nodes: onnxruntime's own kernel, and its numbers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.providers.torch.lowering.files import assert_as_onnxruntime, calls
from tests.providers.torch.lowering.small_models import chain, rows_among_calls

pytestmark = pytest.mark.usefixtures("joined")
CASES = {
    "nearest by whole factors": ([1, 1, 2, 3], {"mode": "nearest", "nearest_mode": "floor"}, "asymmetric"),
    "nearest along one axis": ([1, 1, 1, 4], {"mode": "nearest", "nearest_mode": "floor"}, "asymmetric"),
    "linear by whole factors": ([1, 1, 2, 3], {"mode": "linear"}, "half_pixel"),
    "linear to other sizes": ([1, 1, 1.4, 0.6], {"mode": "linear"}, "half_pixel"),
    "cubic": ([1, 1, 2, 1.4], {"mode": "cubic"}, "half_pixel"),
    "cubic between corners": ([1, 1, 2.2, 0.6], {"mode": "cubic"}, "align_corners"),
    "linear between corners": ([1, 1, 2, 2.2], {"mode": "linear"}, "align_corners"),
}


@pytest.mark.parametrize(("factors", "ways", "transformation"), CASES.values(), ids=CASES)
def test_a_row_resizes_images_as_onnxruntime_does(rng, factors, ways, transformation):
    shape = (2, 3, 5, 5)
    sizes = np.array([round(factor * length) for factor, length in zip(factors, shape, strict=True)], np.int64)
    resize = helper.make_node(
        "Resize", ["b", "", "", "sizes"], ["c"], coordinate_transformation_mode=transformation, **ways
    )
    model, feeds = chain(rng, [resize], shape=shape, weights={"sizes": sizes})
    session = assert_as_onnxruntime(model, feeds, rtol=1e-5, atol=1e-5)
    # A cubic one stays ours where it stands among large nodes.
    name = "Interpolate" if ways["mode"] == "cubic" else "Resize"
    assert calls(session) == rows_among_calls(session) == [f"onnxruntime_Exp + Neg + {name} + Abs + Sqrt"]
