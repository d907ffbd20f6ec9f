"""Numbers of many graphs in terms of their sizes: what a formula made is found, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ontrain.sizes import Features, UnfitError

SIZES = np.array([(2, 7), (3, 7), (2, 11), (5, 13), (4, 9), (7, 5), (6, 17), (3, 12), (5, 6), (8, 16)])
"""Batch and length of the graphs that were seen."""
NEW = (9, 23)


@given(st.tuples(*[st.integers(-50, 50)] * 6))
def test_a_polynomial_of_the_second_degree_is_found_at_other_sizes(coefficients):
    def number(batch, length):
        terms = (1, batch, length, batch * batch, batch * length, length * length)
        return sum(c * t for c, t in zip(coefficients, terms, strict=True))

    rule = Features(SIZES).rule(np.array([[number(*sizes)] for sizes in SIZES.tolist()]))
    assert rule.at(NEW).tolist() == [number(*NEW)]


def test_a_quotient_is_whole_or_refused():
    sizes = SIZES[:, :1] * 2
    rule = Features(sizes).rule(sizes // 2)
    assert rule.at((18,)).tolist() == [9]
    with pytest.raises(UnfitError, match="not whole"):
        rule.at((9,))


def test_what_no_polynomial_gives_is_refused():
    with pytest.raises(UnfitError, match="no polynomial in the sizes"):
        Features(SIZES).rule(2 ** SIZES[:, 1:])


def test_a_size_that_follows_another_has_to_follow_it_at_new_sizes():
    features = Features(np.stack([SIZES[:, 1], 4 * SIZES[:, 1] - 4], 1))
    features.check((23, 88))
    with pytest.raises(UnfitError, match="go together otherwise"):
        features.check((23, 90))
