"""Sizes as expressions: equal where the polynomials are, and of the value that Python's own arithmetic has."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from ontrain.sizes import Call, Size, parse

B, S = Size.symbol("batch"), Size.symbol("length")

LEAVES = st.sampled_from(["batch", "length", "heads"]) | st.integers(0, 20).map(str)
TEXTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
        | st.tuples(st.sampled_from(["max", "min"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})")
    ),
    max_leaves=8,
)
AT = st.fixed_dictionaries({name: st.integers(1, 50) for name in ("batch", "length", "heads")})


@given(TEXTS, AT)
def test_a_size_has_the_value_that_python_computes(text, at):
    size = parse(text)
    try:
        value = eval(text, {"max": max, "min": min}, dict(at))  # noqa: S307
    except ZeroDivisionError:
        return  # what an exact quotient takes out may be what was divided by zero
    assert size.value(at) == value


@given(TEXTS)
def test_what_is_printed_is_read_back(text):
    size = parse(text)
    assert parse(str(size)) == size
    assert hash(parse(str(size))) == hash(size)


@given(TEXTS, AT)
def test_substituted_numbers_leave_a_number(text, at):
    try:
        value = eval(text, {"max": max, "min": min}, dict(at))  # noqa: S307
    except ZeroDivisionError:
        return
    substituted = parse(text).substitute({name: Size.number(number) for name, number in at.items()})
    assert substituted.as_number == value


@pytest.mark.parametrize(
    "size, other",
    [
        ((B + 1) * (S + 1), B * S + S + B + 1),
        (B * 2 - B - B, Size.number(0)),
        (S * B, B * S),
        ((B * S * 4) // S, B * 4),
        ((B * S + 1) % S, 1 % S),
        (-B % B, Size.number(0)),
        ((B * 2 + 3) // 2, B + 1),
        (B * Fraction(1, 2) * 2, B),
    ],
)
def test_the_same_size_is_equal_however_it_was_written(size, other):
    assert size == other
    assert hash(size) == hash(other)


@pytest.mark.parametrize(
    "size, text",
    [
        (B * 64 + 1, "64*batch + 1"),
        (B * B - S, "batch*batch - length"),
        (-B, "-batch"),
        (B * Fraction(1, 2), "1/2*batch"),
        (B * Fraction(-1, 3), "-1/3*batch"),
        (Size.call("/", B, 3), "batch / 3"),
        ((S + 1) // 2 * B, "batch*((length + 1)//2)"),
        (Size.call("<=", S, 512), "length <= 512"),
        (Size.call("not", Size.call("==", S % 4, 0)), "not((length % 4) == 0)"),
        (Size.call("max", B, S), "max(batch, length)"),
    ],
)
def test_sizes_print_as_python(size, text):
    assert str(size) == text
    assert parse(text) == size


def test_other_names_are_printed_in_the_place_of_symbols():
    assert (B * 2 + S).text({"batch": "x.shape[0]"}) == "2*x.shape[0] + length"


@pytest.mark.parametrize(
    "text, holds, fails",
    [
        ("length <= 512", 512, 513),
        ("length % 8 == 0 and length > 8", 16, 8),
        ("not length == 4 or length < 0", 5, 4),
        ("where(length > 3, length, 0) == length", 4, 3),
    ],
)
def test_conditions_have_truth_values(text, holds, fails):
    assert parse(text).value({"length": holds})
    assert not parse(text).value({"length": fails})


def test_a_quotient_that_is_a_fraction_is_not_simplified_to_whole_numbers():
    half = Size.call("/", B, 2)
    assert half.value({"batch": 3}) == Fraction(3, 2)
    assert (half * B // B).terms[0][0] == (Call("//", (half * B, B)),)


def test_symbols_are_found_within_calls():
    assert (Size.call("max", B // 2, 1) * Size.symbol("heads")).symbols() == {"batch", "heads"}
    assert [B.as_symbol, (B + 1).as_symbol, Size.number(3).as_number, B.as_number] == ["batch", None, 3, None]


@pytest.mark.parametrize(
    "size, states", [(B * S * 3 + 1, True), (B - 1, False), (B // 2, False), (S * Fraction(1, 2), False)]
)
def test_dimensions_are_sums_of_products_of_natural_numbers(size, states):
    assert size.is_dimension is states
