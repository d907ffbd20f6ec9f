"""What does nothing goes, to the last bit; what does something stays."""

from __future__ import annotations

import numpy as np
import pytest

from ontrain.graph import rebuild
from ontrain.passes import Simplify, run_passes
from tests.passes.graphs import applied, graph, operators, values


@pytest.mark.parametrize(
    ("make", "left"),
    [
        (lambda op, x: op.Exp(x) * 1.0, ["Exp"]),
        (lambda op, x: op.Exp(x) + 0.0, ["Exp"]),
        (lambda op, x: op.Exp(x) - 0.0, ["Exp"]),
        (lambda op, x: op.Exp(x) / 1.0, ["Exp"]),
        (lambda op, x: op.Identity(op.Exp(x)), ["Exp"]),
        (lambda op, x: op.CastLike(op.Exp(x), x), ["Exp"]),
        (lambda op, x: op.Expand(op.Exp(x), [3, 4]), ["Exp"]),
        (lambda op, x: op.Reshape(op.Reshape(op.Exp(x), [12]), [4, 3]), ["Exp", "Reshape"]),
        (lambda op, x: op.Reshape(op.Reshape(op.Exp(x), [12]), [3, 4]), ["Exp"]),
        (lambda op, x: op.Transpose(op.Transpose(op.Exp(x), perm=[1, 0]), perm=[1, 0]), ["Exp"]),
        (lambda op, x: op.Where(np.ones((3, 4), bool), op.Exp(x), 0.0), ["Exp"]),
    ],
)
def test_what_does_nothing_goes(make, left):
    model = graph(make, x=[3, 4])
    rewritten, _ = run_passes(model, [Simplify(), Simplify()])
    assert operators(rebuild(rewritten)) == left
    for a, b in zip(values(model), values(rewritten), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "make",
    [
        lambda op, x: 0.0 - op.Exp(x),
        lambda op, x: 1.0 / op.Exp(x),
        lambda op, x: op.Exp(x) + np.zeros((2, 3, 4), np.float32),  # it broadcasts
        lambda op, x: op.Where(np.eye(3, 4, dtype=bool), op.Exp(x), 0.0),
        lambda op, x: op.Transpose(op.Exp(x), perm=[1, 0]),
    ],
)
def test_what_does_something_stays(make):
    applied(Simplify(), graph(make, x=[3, 4]), count=0)


def test_two_transposes_that_do_not_undo_each_other_become_one():
    def make(op, x):
        return op.Transpose(op.Transpose(op.Exp(x), perm=[1, 2, 0]), perm=[0, 2, 1])

    rewritten = rebuild(applied(Simplify(), graph(make, x=[2, 3, 4]), count=1))
    assert operators(rewritten) == ["Exp", "Transpose"]
    assert list(rewritten.graph[1].attributes["perm"].as_ints()) == [1, 0, 2]


def test_a_transpose_without_a_permutation_reverses_the_axes():
    rewritten = applied(Simplify(), graph(lambda op, x: op.Transpose(op.Transpose(op.Exp(x))), x=[2, 3, 4]), count=1)
    assert operators(rewritten) == ["Exp"]


@pytest.mark.parametrize(
    "make",
    [lambda op, x: op.Exp(x) * 0.0, lambda op, x: op.Exp(x) + 1.0, lambda op, x: op.Exp(x) - 1.0],
    ids=["times zero", "plus one", "minus one"],
)
def test_a_number_that_is_neutral_for_another_operator_stays(make):
    assert len(operators(applied(Simplify(), graph(make, x=[3, 4]), count=0))) == 2


def test_a_choice_that_broadcasts_what_it_takes_stays():
    model = graph(lambda op, x: op.Where(np.ones((3, 4), bool), op.Exp(x), 0.0), x=[4])
    assert "Where" in operators(applied(Simplify(), model, count=0))


def test_an_output_that_does_nothing_keeps_its_name():
    rewritten = applied(Simplify(), graph(lambda op, x: op.Identity(op.Exp(x)), x=[3]), count=1)
    assert [value.name for value in rewritten.graph.outputs] == ["y0"]
