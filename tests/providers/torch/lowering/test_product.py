"""Products in each formulation that a measurement may pick, as models make them, against float64."""

from __future__ import annotations

import random

import pytest

from ontrain.providers.torch.lowering import product
from tests.providers.torch.doubled import assert_trains_as_in_double, mixed

pytestmark = [pytest.mark.sampled(4), pytest.mark.usefixtures("captured_once")]


def _random_sizes(count):
    numbers = random.Random(20)
    return [
        (numbers.randint(33, 200), 2 * numbers.randint(17, 90), numbers.randint(17, 130), numbers.randint(17, 300))
        for _ in range(count)
    ]


@pytest.mark.parametrize("sizes", _random_sizes(4), ids=str)
@pytest.mark.parametrize("block", [product._BLOCK, 1 << 14], ids=["whole", "cut"])
def test_small_products_of_random_sizes(sizes, block, forced, threads, multiplied, monkeypatch):
    monkeypatch.setattr(product, "_WORTH", 0)
    monkeypatch.setattr(product, "_BLOCK", block)
    assert_trains_as_in_double(*mixed(*sizes, seed=sum(sizes)))
    assert forced in multiplied


@pytest.mark.parametrize("sizes", [(700, 260, 333, 515), (96, 1100, 1050, 1200), (1030, 64, 130, 9000)], ids=str)
def test_products_above_the_thresholds(sizes, forced, threads, multiplied):
    assert_trains_as_in_double(*mixed(*sizes, seed=1))
    assert forced in multiplied


def test_products_of_the_least_sizes_that_have_a_choice(forced, threads, multiplied, monkeypatch):
    monkeypatch.setattr(product, "_WORTH", 0)
    for size in (product._LEAST - 1, product._LEAST, product._LEAST + 1):
        assert_trains_as_in_double(*mixed(2 * size, 2 * size, size, size, seed=size))
    assert forced in multiplied
