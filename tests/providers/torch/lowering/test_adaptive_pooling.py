"""Pooling to a given size: kernels give what the bodies give, and results are eager's in each layout."""

import pytest
import torch
from torch.nn import functional

from tests.providers.bodies import compare, lowered_in
from tests.providers.torch.lowering.pooled import check


@lowered_in("adaptive_pooling")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", [(5, 4), (1, 7), (12, 3), (9, None)])
@pytest.mark.parametrize("pool", [functional.adaptive_avg_pool2d, functional.adaptive_max_pool2d])
def test_images_of_each_layout(pool, size):
    check(lambda x: pool(x, size), (9, 10))


@pytest.mark.parametrize("pool", [functional.adaptive_avg_pool1d, functional.adaptive_max_pool1d])
def test_lines(pool):
    check(lambda x: pool(x.flatten(2), 7), (5, 4))


@pytest.mark.parametrize("pool", [functional.adaptive_avg_pool3d, functional.adaptive_max_pool3d])
def test_volumes(pool):
    check(lambda x: pool(x.unflatten(2, (3, 2)), (2, 2, 5)), (6, 7))


def test_of_equal_maxima_the_places_are_eagers():
    def unpooled(x: torch.Tensor) -> torch.Tensor:
        y, places = functional.adaptive_max_pool2d(x.repeat_interleave(3, -1), (3, 4), return_indices=True)
        return y * places

    check(unpooled, (8, 3))
