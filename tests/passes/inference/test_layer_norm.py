"""Layer normalisation that a file spells out becomes the operator."""

from __future__ import annotations

import numpy as np
import pytest

from ontrain.passes.inference import FuseLayerNormalization
from tests.passes.inference.weighted import applied, operators, random, weighted

X = {"x": ["batch", "length", 8]}
NORM = {"scale": random(8), "shift": random(8)}


def norm(op, x, scale, shift, *, axis=-1, square="Pow", epsilon=None, swapped=False):
    epsilon = op.const(np.float32(1e-5)) if epsilon is None else epsilon
    d = x - op.ReduceMean(x, np.array([axis]))
    squared = op.Pow(d, op.const(np.float32(2))) if square == "Pow" else d * d
    normal = d / op.Sqrt(op.ReduceMean(squared, np.array([axis])) + epsilon)
    return shift + scale * normal if swapped else normal * scale + shift


@pytest.mark.parametrize("square", ["Pow", "Mul"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("axis", [-1, 2])
def test_the_formula_becomes_the_operator(square, swapped, axis):
    def make(op, x, *w):
        return op.Tanh(norm(op, x * np.float32(2), *w, axis=axis, square=square, swapped=swapped))

    model = applied(FuseLayerNormalization(), weighted(make, X, NORM), count=1)
    assert operators(model) == ["Mul", "LayerNormalization", "Tanh"]
    assert abs(model.graph[1].attributes["epsilon"].as_float() - 1e-5) < 1e-12


def test_so_do_two_of_one_value():
    def make(op, x, *w):
        return norm(op, x, *w), norm(op, x, *w[::-1])

    assert operators(applied(FuseLayerNormalization(), weighted(make, X, NORM), count=2)) == ["LayerNormalization"] * 2


def test_an_epsilon_that_is_a_weight_of_one_number_is_taken():
    def make(op, x, scale, shift, epsilon):
        return norm(op, x, scale, shift, epsilon=epsilon)

    weights = {**NORM, "epsilon": np.array([1e-6], np.float32)}
    assert operators(applied(FuseLayerNormalization(), weighted(make, X, weights), count=1)) == ["LayerNormalization"]


def left_alone(make, weights=NORM, fed=X):
    model = weighted(make, fed, weights)
    assert operators(applied(FuseLayerNormalization(), model, count=0)) == operators(model)


def test_another_axis_is_left_alone():
    left_alone(lambda op, x, *w: norm(op, x, *w, axis=1), fed={"x": [2, 8, 8]})


def test_a_part_that_is_read_elsewhere_is_left_alone():
    def make(op, x, scale, shift):
        d = x - op.ReduceMean(x, np.array([-1]))
        deviation = op.Sqrt(op.ReduceMean(d * d, np.array([-1])) + op.const(np.float32(1e-5)))
        return d / deviation * scale + shift, deviation

    left_alone(make)


def test_a_scale_for_each_place_is_left_alone():
    left_alone(norm, {"scale": random(1, 8), "shift": random(8)})
