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


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("shape, axes", [((512, 5, 2), [2]), ((16, 3, 20, 4, 8, 2), [3, 5]), ((2, 900, 3), [0, 2])])
@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMean"])
def test_short_axes_are_added_slice_by_slice(rng, kind, shape, axes, keep):
    fed = {"x": rng.standard_normal(shape).astype(np.float32)}
    constants, stated = ({"axes": np.array(axes)}, {}) if kind == "ReduceSum" else ({}, {"axes": axes})
    node = helper.make_node(kind, ["x", *constants], ["y"], keepdims=keep, **stated)
    names = calls(assert_as_onnxruntime(file_of([node], fed, constants, ["y"]), fed, rtol=1e-5, atol=1e-6))
    assert "add" in names and not {"sum", "mean"}.intersection(names)


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axis", [0, 2])
def test_the_length_of_pairs_is_a_hypotenuse(rng, axis, keep):
    shape = [7, 5, 3]
    shape[axis] = 2
    fed = {"x": rng.standard_normal(shape).astype(np.float32)}
    node = helper.make_node("ReduceL2", ["x"], ["y"], keepdims=keep, axes=[axis])
    assert "hypot" in calls(assert_as_onnxruntime(file_of([node], fed, {}, ["y"]), fed, rtol=1e-6))


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMean", "ReduceLogSumExp", "ReduceMax", "ReduceMin"])
def test_of_one_element_the_result_is_that_element(rng, kind, keep):
    fed = {"x": rng.standard_normal((3, 1, 4, 1)).astype(np.float32)}
    fed["x"][0, 0, :3, 0] = np.inf, -np.inf, np.nan
    axes = {"axes": np.array([1, -1])}
    by_input = kind == "ReduceSum"
    node = helper.make_node(kind, ["x", *(axes if by_input else ())], ["y"], keepdims=keep,
                            **({} if by_input else {"axes": [1, -1]}))  # fmt: skip
    session = assert_as_onnxruntime(file_of([node], fed, axes if by_input else {}, ["y"]), fed, rtol=0)
    assert not {"sum", "mean", "logsumexp", "amax", "amin"}.intersection(calls(session))
