"""Numbers at chosen sizes: their polynomial is found exactly, and what is none is not."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ontrain.sizes import fit, sample_sizes


@given(st.lists(st.integers(-50, 50), min_size=4, max_size=4), st.integers(1, 500), st.integers(1, 500))
def test_a_polynomial_of_two_sizes_is_found_exactly(coefficients, batch, length):
    points = sample_sizes(["batch", "length"], {7, 11, 13})
    assert not {n for point in points for n in point.values()} & {7, 11, 13}

    def value(p):
        a, b, c, d = coefficients
        return a + b * p["batch"] + c * p["length"] + d * p["batch"] * p["length"]

    polynomial = fit([value(p) for p in points], points)
    sizes = {"batch": batch, "length": length}
    assert polynomial is not None
    total = sum((c * np.prod([sizes[s] for s in key], dtype=object) for key, c in polynomial.terms), Fraction(0))
    assert total == value(sizes)


@pytest.mark.parametrize("function", [lambda p: p["batch"] ** 2, lambda p: p["batch"] // 2])
def test_what_is_no_polynomial_of_degree_one_is_not_found(function):
    points = sample_sizes(["batch"], set())
    assert fit([function(p) for p in points], points) is None
