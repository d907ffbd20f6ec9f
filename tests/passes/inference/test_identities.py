"""Operators that do nothing, whatever the sizes are."""

from __future__ import annotations

import numpy as np
import pytest

from ontrain.passes.inference import RemoveIdentities
from tests.passes.inference.weighted import applied, operators, random, weighted

X = {"x": ["batch", "length", 4]}


def number(value, *shape):
    return np.full(shape, value, np.float32)


GONE = {
    "x + 0": lambda op, x: x + op.const(number(0)),
    "1 · x": lambda op, x: op.const(number(1, 1, 1)) * x,
    "x − 0": lambda op, x: x - op.const(number(0, 1)),
    "x / 1": lambda op, x: x / op.const(number(1)),
    "a reshape to its shape": lambda op, x: op.Reshape(x, [0, 0, 4]),
    "an identity": lambda op, x: op.Identity(x),
    "a transposition and back": lambda op, x: op.Transpose(op.Transpose(x, perm=[1, 0, 2]), perm=[1, 0, 2]),
    "a concatenation of one": lambda op, x: op.Concat(x, axis=1),
}


@pytest.mark.parametrize("make", GONE.values(), ids=GONE)
def test_what_does_nothing_is_removed(make):
    model = weighted(lambda op, x: op.Tanh(make(op, x)), X, {})
    nodes = len(model.graph) - 1
    assert operators(applied(RemoveIdentities(), model, count=min(nodes, 1))) == ["Tanh"]


LEFT = {
    "x + 0 of more axes": lambda op, x: x + op.const(number(0, 1, 1, 1, 1)),
    "x + 0 that widens": lambda op, x: x + op.const(number(0, 1, 1, 4)),
    "0 − x": lambda op, x: op.const(number(0)) - x,
    "1 / x": lambda op, x: op.const(number(1)) / x,
    "a reshape of a reshape that copies sizes": lambda op, x: op.Reshape(op.Reshape(x, [-1, 4, 1]), [0, 2, 2]),
}


@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT)
def test_what_does_something_stays(make):
    model = weighted(lambda op, x: make(op, x), X, {})
    assert operators(applied(RemoveIdentities(), model, count=0)) == operators(model)


def test_the_second_of_two_reshapes_is_enough():
    model = weighted(lambda op, x: op.Reshape(op.Reshape(x, [-1, 4]), [-1, 2]), X, {})
    assert operators(applied(RemoveIdentities(), model, count=1)) == ["Reshape"]


@pytest.mark.parametrize(("first", "second"), [([1], [3]), ([0, -1], [2]), ([1], [-1, 0]), ([0], [0])], ids=str)
def test_axes_are_inserted_at_once(first, second):
    model = weighted(lambda op, x: op.Unsqueeze(op.Unsqueeze(x, first), second), X, {})
    assert operators(applied(RemoveIdentities(), model, count=1)) == ["Unsqueeze"]


def test_moments_that_nobody_reads_are_not_asked_for():
    def make(op, x, scale, shift):
        return op.LayerNormalization(x, scale, shift, outputs=3)[0]

    model = applied(RemoveIdentities(), weighted(make, X, {"scale": random(4), "shift": random(4)}), count=1)
    assert len(model.graph[0].outputs) == 1
