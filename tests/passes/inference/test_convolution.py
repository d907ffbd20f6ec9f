"""What is done to each channel after a convolution is done to its weights."""

from __future__ import annotations

import numpy as np
import pytest

from ontrain.passes.inference import FoldBatchNormalization, FoldChannelArithmetic
from tests.passes.inference.weighted import applied, operators, random, weighted

X = {"x": ["batch", 4, "height", "width"]}
NORM = {"gamma": random(6), "beta": random(6) + 1, "mean": random(6) * 3, "var": random(6) ** 2 + 0.1}


@pytest.fixture(autouse=True)
def _sizes(monkeypatch):
    monkeypatch.setattr("tests.passes.inference.weighted.SIZES", {"batch": 3, "height": 5, "width": 7})


def normalised(op, y, norm):
    return op.BatchNormalization(y, *norm, epsilon=1e-3)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_a_normalisation_is_folded_into_the_convolution_before_it(groups, bias):
    weights = {"conv.weight": random(6, 4 // groups, 3, 3), **({"conv.bias": random(6)} if bias else {}), **NORM}

    def make(op, x, *w):
        return normalised(op, op.Conv(x, *w[:-4], group=groups, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), w[-4:])

    model = applied(FoldBatchNormalization(), weighted(make, X, weights), count=1)
    assert operators(model) == ["Conv"]
    assert [value.name for value in model.graph.inputs] == ["x", "conv.weight", "conv.bias"]


def test_so_is_one_after_a_convolution_whose_weights_are_constants():
    w = random(6, 4, 3, 3)

    def make(op, x, *norm):
        return normalised(op, op.Conv(x, op.const(w), kernel_shape=[3, 3]), norm)

    assert operators(applied(FoldBatchNormalization(), weighted(make, X, NORM), count=1)) == ["Conv"]


@pytest.mark.parametrize("groups", [1, 2])
def test_so_is_one_after_a_transposed_convolution_whose_weights_lie_the_other_way(groups):
    weights = {"w": random(4, 6 // groups, 3, 3), **NORM}

    def make(op, x, w, *norm):
        return normalised(op, op.ConvTranspose(x, w, group=groups, kernel_shape=[3, 3]), norm)

    assert operators(applied(FoldBatchNormalization(), weighted(make, X, weights), count=1)) == ["ConvTranspose"]


def test_a_convolution_that_others_read_is_left_alone():
    def make(op, x, w, *norm):
        y = op.Conv(x, w, kernel_shape=[3, 3])
        return normalised(op, y, norm), op.Relu(y)

    model = weighted(make, X, {"w": random(6, 4, 3, 3), **NORM})
    assert sorted(operators(applied(FoldBatchNormalization(), model, count=0))) == [
        "BatchNormalization", "Conv", "Relu",
    ]  # fmt: skip


def test_weights_that_two_convolutions_share_are_folded_for_each():
    def make(op, x, w, *norm):
        first = normalised(op, op.Conv(x, w, kernel_shape=[3, 3]), norm)
        return first, normalised(op, op.Conv(op.Relu(x), w, kernel_shape=[3, 3]), norm[::-1][2:] + norm[2:])

    model = applied(FoldBatchNormalization(), weighted(make, X, {"w": random(6, 4, 3, 3), **NORM}), count=2)
    names = [value.name for value in model.graph.inputs]
    assert sorted(operators(model)) == ["Conv", "Conv", "Relu"] and len(set(names)) == len(names) == 5


def test_weights_that_are_fed_are_left_alone():
    fed = {**X, "w": [6, 4, 3, 3]}

    def make(op, x, w, *norm):
        return normalised(op, op.Conv(x, w, kernel_shape=[3, 3]), norm)

    assert len(operators(applied(FoldBatchNormalization(), weighted(make, fed, dict(NORM)), count=0))) == 2


@pytest.mark.parametrize("kind", ["Mul", "Add"])
@pytest.mark.parametrize("shape", [(6, 1, 1), (1, 6, 1, 1), (1, 1, 1, 1), ()], ids=str)
def test_numbers_for_each_channel_are_folded(kind, shape):
    number = np.asarray(np.random.default_rng(3).standard_normal(shape), np.float32)

    def make(op, x, w, b):
        return getattr(op, kind)(op.const(number), op.Conv(x, w, b, kernel_shape=[3, 3]))

    model = weighted(make, X, {"w": random(6, 4, 3, 3), "b": random(6)})
    assert operators(applied(FoldChannelArithmetic(), model, count=1)) == ["Conv"]


@pytest.mark.parametrize("shape", [(3, 1), (1, 1, 1, 1, 1), (1, 5), (2, 1, 1, 1)], ids=str)
def test_numbers_that_differ_within_a_channel_or_widen_the_result_are_left_alone(shape):
    number = random(*shape)

    def make(op, x, w):
        return op.Conv(x, w, kernel_shape=[3, 3]) * op.const(number)

    fed = {"x": [2 if shape[0] == 2 else 1, 4, 5, 7]}
    model = weighted(make, fed, {"w": random(6, 4, 3, 3)})
    assert operators(applied(FoldChannelArithmetic(), model, count=0)) == ["Conv", "Mul"]
