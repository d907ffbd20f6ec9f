"""Where rows lie, against numpy: a value whose elements say which row they belong to is moved, and must agree."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ontrain.passes.rows.layout import Layout, reshaped


def row_numbers(layout: Layout, shape: tuple[int, ...]) -> np.ndarray:
    """For each element of a value the row that lies there, −1 for none."""
    numbers = np.full(shape, -1)
    for row in range(layout.rows):
        index: list[object] = [slice(None)] * len(shape)
        for axis, places in layout.places.items():
            index[axis] = int(places[row])
        numbers[tuple(index)] = row
    return numbers


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes of one size, one made from the other by merging and splitting axes."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    merged: list[int] = []
    for size in sizes:
        if merged and draw(st.booleans()):
            merged[-1] *= size
        else:
            merged.append(size)
    split: list[int] = []
    for size in sizes:
        factors = [f for f in range(1, size + 1) if size % f == 0]
        first = draw(st.sampled_from(factors))
        split += [first, size // first]
    return draw(
        st.sampled_from([(tuple(sizes), tuple(merged)), (tuple(merged), tuple(split)), (tuple(split), tuple(sizes))])
    )


@given(reshapes(), st.data())
def test_rows_before_a_reshape_are_those_after_it(shapes, data):
    source, shape = shapes
    lead = data.draw(st.integers(1, len(shape)))
    layout = Layout.leading(shape[:lead])
    target = reshaped(layout, shape, source)
    # The oracle: a leading run of axes survives a reshape if the source has axes of the same product in front.
    products = [math.prod(source[:k]) for k in range(len(source) + 1)]
    if math.prod(shape[:lead]) not in products:
        assert target is None or layout.rows == 1
        return
    assert target is not None
    np.testing.assert_array_equal(row_numbers(target, source).reshape(shape), row_numbers(layout, shape))


def test_rows_along_axes_that_are_apart_stay_apart_in_a_reshape():
    shape, source = (4, 6, 10, 8), (4, 2, 3, 10, 8)
    layout = Layout.leading((4, 10)).moved({0: 0, 1: 2})
    target = reshaped(layout, shape, source)
    assert target is not None and target.axes == {0, 3}
    np.testing.assert_array_equal(row_numbers(target, source).reshape(shape), row_numbers(layout, shape))


def test_an_axis_that_holds_rows_and_more_cannot_be_taken_apart():
    assert reshaped(Layout.leading((4,)), (4, 6), (24,)) is None


@pytest.mark.parametrize(
    ("shape", "axes", "lead"), [((4, 10, 8), {0, 1}, 2), ((1, 10, 8), {1}, 2), ((4, 2, 10), {0, 2}, None)]
)
def test_leading_axes_may_have_ones_among_them_and_nothing_else(shape, axes, lead):
    layout = Layout(3, {a: np.arange(3) for a in axes})
    assert layout.lead(shape) == lead


def test_positions_that_a_batch_shares_are_no_rows_of_their_own():
    shared = Layout.leading((2, 3)).moved({1: 1})
    assert not shared.injective((1, 3, 8)) and Layout.leading((2, 3)).injective((2, 3, 8))
