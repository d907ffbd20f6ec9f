"""Constants of a few graphs in terms of sizes: what a formula made is found, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from ontrain.graph.fits import constant_rule, same
from ontrain.sizes import Features, UnfitError

SIZES = np.array([(2, 7), (3, 7), (2, 11), (5, 13), (4, 9), (7, 5), (6, 17), (3, 12), (5, 6), (8, 16)])
"""Batch and length of the graphs that were seen."""
NEW = (9, 23)


@pytest.mark.parametrize(
    "make",
    [
        lambda batch, length: np.arange(length),
        lambda batch, length: np.arange(batch * length).reshape(batch, length),
        lambda batch, length: np.full((batch, length), 2.5, np.float32),
        lambda batch, length: np.array([batch, -1, 3 * length]),
        lambda batch, length: np.array([1 / (batch * length), float(length)], np.float32),
        lambda batch, length: np.float32(1 / (batch - 1)),
    ],
    ids=["positions", "places", "filled", "shape", "means", "unbiased"],
)
def test_a_constant_is_what_its_formula_makes_at_other_sizes(make):
    rule = constant_rule([np.asarray(make(*sizes)) for sizes in SIZES.tolist()], Features(SIZES))
    assert same(rule(NEW), np.asarray(make(*NEW)))


def test_of_a_table_only_what_was_seen_is_known():
    table = np.random.default_rng(0).standard_normal((32, 3)).astype(np.float32)
    rule = constant_rule([table[:length] for _, length in SIZES.tolist()], Features(SIZES))
    assert same(rule((9, 16)), table[:16])
    with pytest.raises(UnfitError, match="larger than any"):
        rule((9, 18))


def test_numbers_of_each_graph_by_itself_are_refused():
    drawn = [np.random.default_rng(i).standard_normal(sizes[1]) for i, sizes in enumerate(SIZES.tolist())]
    with pytest.raises(UnfitError, match="depend on the size"):
        constant_rule(drawn, Features(SIZES))


def test_not_a_number_is_the_same_as_itself_and_types_differ():
    nan = np.array([np.nan], np.float32)
    assert same(nan, nan.copy()) and not same(nan, nan.astype(np.float64)) and not same(nan, nan.reshape(1, 1))
