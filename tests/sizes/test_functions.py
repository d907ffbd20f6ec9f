"""Functions of sizes, at numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from ontrain.sizes import Size
from ontrain.sizes.functions import FUNCTIONS, INFIX


@pytest.mark.parametrize(
    ("name", "arguments", "value"),
    [
        ("//", (-7, 2), -4), ("%", (-7, 2), 1), ("/", (7, 2), Fraction(7, 2)), ("**", (2, -1), Fraction(1, 2)),
        ("max", (1, 3, 2), 3), ("min", (1, 3, -2), -2), ("floor", (Fraction(-7, 2),), -4),
        ("trunc", (Fraction(-7, 2),), -3),
        ("ceil", (Fraction(-7, 2),), -3), ("round", (Fraction(5, 2),), 2), ("where", (False, 1, 2), 2),
        ("and", (True, True, False), False), ("or", (False, True), True), ("not", (True,), False), ("float", (3,), 3),
    ],
)  # fmt: skip
def test_functions_are_pythons(name, arguments, value):
    assert FUNCTIONS[name](*arguments) == value
    assert Size.call(name, *arguments).as_number == value


@pytest.mark.parametrize("share", [Fraction(0.7), Fraction(1.1), Fraction(0.1)], ids=float)
@pytest.mark.parametrize("length", [3, 10, 30, 1_000_017])
def test_arithmetic_with_floats_rounds_as_pythons(share, length):
    size = Size.call("ceil", Size.call("float", Size.symbol("length")) * share)
    assert size.value({"length": length}) == math.ceil(length * float(share))
    third = Size.call("/", Size.symbol("length"), 3)
    assert third.value({"length": length}) == length / 3
    assert Size.call("/", length, 3).as_number == length / 3


def test_roots_are_not_exact_and_stay_calls():
    assert FUNCTIONS["sqrt"](2) == math.sqrt(2) == FUNCTIONS["**"](2, Fraction(1, 2))
    assert Size.call("sqrt", 2).as_number is None


def test_what_is_written_between_its_arguments_is_a_function():
    assert FUNCTIONS.keys() >= INFIX
