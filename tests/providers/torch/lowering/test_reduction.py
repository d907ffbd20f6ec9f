"""Reductions: kernels give what the operators' bodies give, gradients included."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.providers.bodies import compare, lowered_in
from tests.providers.torch.lowering.files import assert_as_onnxruntime, calls, file_of


@lowered_in("reduction")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [[0], [1], [0, 1], [2], [0, 2], None], ids=str)
@pytest.mark.parametrize("kind", ["ReduceL1", "ReduceL2", "ReduceSumSquare"])
def test_norms_over_any_axes(rng, kind, axes, keep):
    fed = {"x": rng.standard_normal((3, 4, 5)).astype(np.float32)}
    node = helper.make_node(kind, ["x"], ["y"], keepdims=keep, **({} if axes is None else {"axes": axes}))
    names = calls(assert_as_onnxruntime(file_of([node], fed, {}, ["y"]), fed, rtol=1e-6))
    if axes is not None and max(axes) < 2:
        assert not any("norm" in name for name in names)  # which goes element by element there
