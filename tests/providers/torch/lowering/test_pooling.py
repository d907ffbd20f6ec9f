"""Pools of all kinds of windows, forward and backward, as eager's."""

import numpy as np
import pytest
import torch
from onnx import helper
from torch.nn import functional

from tests.providers.torch.lowering.files import assert_as_onnxruntime, calls, file_of
from tests.providers.torch.lowering.pooled import Pooled, check
from tests.training.ortmodule.networks import assert_same_gradients, pair

pytestmark = pytest.mark.sampled(4)

# Kernel, stride, pads, whether sizes are rounded up, whether pads count, height and width.
AVERAGES = [
    (1280, 1280, 0, True, True, (4, 4)), (2, 2, 0, False, True, (8, 8)), (3, 2, 1, True, True, (7, 8)),
    (3, 2, 1, True, False, (8, 8)), (3, 1, 1, False, False, (5, 6)), ((3, 2), (2, 3), (1, 0), True, True, (9, 10)),
    (4, 3, 2, True, False, (10, 11)), (5, 5, 0, True, True, (7, 12)), (3, 5, 0, False, True, (9, 13)),
]  # fmt: skip
MAXIMA = [(2, 2, 0, 1, False), (3, 2, 1, 1, True), ((3, 2), 1, (1, 0), 1, False), (3, 3, 1, 2, True)]


@pytest.mark.parametrize("kernel, stride, pads, rounds_up, counted, size", AVERAGES)
def test_means(kernel, stride, pads, rounds_up, counted, size):
    check(lambda x: functional.avg_pool2d(x, kernel, stride, pads, rounds_up, counted), size)


@pytest.mark.parametrize("kernel, stride, pads, rounds_up, counted", [(3, 2, 1, True, False), (4, 3, 2, False, True)])
def test_means_of_lines(kernel, stride, pads, rounds_up, counted):
    check(lambda x: functional.avg_pool1d(x.flatten(2), kernel, stride, pads, rounds_up, counted), (4, 7))


@pytest.mark.parametrize("rounds_up, counted", [(True, False), (False, True), (True, True)])
def test_means_of_volumes(rounds_up, counted):
    pads = (1, 0, 1)
    check(lambda x: functional.avg_pool3d(x.unflatten(2, (4, 3)), (2, 3, 2), 2, pads, rounds_up, counted), (12, 7))


@pytest.mark.parametrize("kernel, stride, pads, dilation, rounds_up", MAXIMA)
def test_maxima(kernel, stride, pads, dilation, rounds_up):
    check(lambda x: functional.max_pool2d(x, kernel, stride, pads, dilation, rounds_up), (9, 10))


@pytest.mark.parametrize("kernel, stride, pads, dilation, rounds_up", [(3, 2, 1, 1, True), (2, None, 0, 2, False)])
def test_maxima_of_lines(kernel, stride, pads, dilation, rounds_up):
    check(lambda x: functional.max_pool1d(x.flatten(2), kernel, stride, pads, dilation, rounds_up), (3, 7))


@pytest.mark.parametrize(
    "kernel, stride, pads, dilation, rounds_up", [((2, 3, 2), 2, (1, 0, 1), 1, True), (2, (1, 2, 3), 0, 2, False)]
)
def test_maxima_of_volumes(kernel, stride, pads, dilation, rounds_up):
    check(lambda x: functional.max_pool3d(x.unflatten(2, (4, 3)), kernel, stride, pads, dilation, rounds_up), (12, 7))


def test_maxima_whose_places_are_read_have_theirs_in_the_tensor():
    def unpooled(x: torch.Tensor) -> torch.Tensor:
        y, places = functional.max_pool2d(x, 2, return_indices=True)
        return functional.max_unpool2d(y, places, 2)

    check(unpooled, (6, 8))


def test_a_window_larger_than_the_images_has_a_gradient_on_each_provider():
    ours, eager = pair(Pooled(lambda x: functional.avg_pool1d(x.flatten(2), 50, 50, 0, True), last=True))
    x = torch.randn(2, 3, 4, 4)
    for module in (ours, eager):
        module(x).mean().backward()
    assert_same_gradients(ours, eager, rtol=1e-5, atol=1e-6)


WINDOWS = [
    ((9, 10), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((9, 10), {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 1, 1]}),
    ((9, 10), {"kernel_shape": [3, 3], "dilations": [2, 1], "ceil_mode": 1, "strides": [2, 2]}),
    ((9, 10), {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((9, 10), {"kernel_shape": [1, 1], "strides": [3, 1]}),
    ((9, 10), {"kernel_shape": [1, 1]}),
    ((11,), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    ((5, 6, 7), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2], "pads": [0, 1, 0, 0, 1, 1]}),
]


@pytest.mark.parametrize("size, windows", WINDOWS)
def test_maxima_without_places_look_at_whole_rows(rng, size, windows):
    fed = {"x": rng.standard_normal((2, 3, *size)).astype(np.float32) - 3}
    model = file_of([helper.make_node("MaxPool", ["x"], ["y"], **windows)], fed, {}, ["y"])
    assert "_maxima" in calls(assert_as_onnxruntime(model, fed, rtol=0))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_maxima_of_whole_numbers_take_no_number_of_the_pads(rng, dtype):
    fed = {"x": rng.integers(-100 if dtype is np.int8 else 0, 100, (1, 2, 5, 6)).astype(dtype)}
    node = helper.make_node("MaxPool", ["x"], ["m"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    cast = helper.make_node("Cast", ["m"], ["y"], to=1)
    assert_as_onnxruntime(file_of([node, cast], fed, {}, ["y"]), fed, rtol=0)


@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (1, 1, 7, 7), (1, 5, 1, 1), (2, 3, 4, 5), (1, 3, 1, 5)], ids=str)
@pytest.mark.parametrize("after", ["nothing", "convolution"])
def test_the_mean_of_a_small_image(rng, shape, after):
    fed = {"x": rng.standard_normal(shape).astype(np.float32)}
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["y"])]
    weights = {}
    if after == "convolution":
        weights = {"w": rng.standard_normal((6, shape[1], 3, 3)).astype(np.float32)}
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("GlobalAveragePool", ["c"], ["y"]),
        ]
    assert_as_onnxruntime(file_of(nodes, fed, weights, ["y"]), fed, rtol=1e-5, atol=1e-6)


def test_means_of_no_images_with_uneven_pads():
    node = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 1, 1])
    fed = {"x": np.zeros((0, 8, 3, 3), np.float32)}
    assert_as_onnxruntime(file_of([node], fed, {}, ["y"]), fed)
