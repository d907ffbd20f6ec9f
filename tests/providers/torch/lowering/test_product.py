"""Products in each formulation that a measurement may pick, as models make them, against float64."""

from __future__ import annotations

import random

import pytest
import torch

from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering import product
from ontrain.providers.torch.settings import Settings
from ontrain.providers.torch.tuning import Forced
from tests.providers.torch.doubled import assert_trains_as_in_double, mixed

pytestmark = [pytest.mark.sampled(4), pytest.mark.usefixtures("captured_once")]


def _random_sizes(count):
    numbers = random.Random(20)
    return [
        (numbers.randint(33, 200), 2 * numbers.randint(17, 90), numbers.randint(17, 130), numbers.randint(17, 300))
        for _ in range(count)
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sizes", _random_sizes(4), ids=str)
@pytest.mark.parametrize("block", [product._BLOCK, 1 << 14], ids=["whole", "cut"])
def test_small_products_of_random_sizes(sizes, block, forced, threads, multiplied, monkeypatch):
    monkeypatch.setattr(product, "_WORTH", 0)
    monkeypatch.setattr(product, "_BLOCK", block)
    assert_trains_as_in_double(*mixed(*sizes, seed=sum(sizes)))
    assert forced in multiplied


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sizes", [(700, 260, 333, 515), (96, 1100, 1050, 1200), (1030, 64, 130, 9000)], ids=str)
def test_products_above_the_thresholds(sizes, forced, threads, multiplied):
    assert_trains_as_in_double(*mixed(*sizes, seed=1))
    assert forced in multiplied


def test_products_of_the_least_sizes_that_have_a_choice(forced, threads, multiplied, monkeypatch):
    monkeypatch.setattr(product, "_WORTH", 0)
    for size in (product._LEAST - 1, product._LEAST, product._LEAST + 1):
        assert_trains_as_in_double(*mixed(2 * size, 2 * size, size, size, seed=size))
    assert forced in multiplied


@pytest.mark.parametrize(("columns", "orders"), [(30522, "NTw"), (4096, "NTN")])
def test_the_name_of_a_part_says_that_its_rows_lie_far_apart(columns, orders):
    asked = []

    class Asked(Forced):
        def fastest(self, product, names, measure):
            asked.append(product)
            return self.name

    e = Emitter(torch.device("cpu"), settings=Settings(tuning=Asked("aten")))
    x, w, out = (e.constant(torch.ones(shape)) for shape in ((64, 256), (columns, 256), (64, columns)))
    product.multiply(e, product.Factors(x, e.view(w, torch.t), out))
    assert asked[0].split()[1] == orders
    product._measure((64, 256, 512), orders, "")  # can be made
