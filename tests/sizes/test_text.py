"""Texts of sizes, as files may hold them."""

from __future__ import annotations

import pytest

from ontrain.sizes import evaluated, parse


@pytest.mark.parametrize(
    "text",
    ["", "a b", "a.b", "f(a)", "a[0]", "lambda: 1", "a if b else c", "1.5*a", "'a'", "a < b < c", "9" * 5000, "(" * 300,
     "2**9**9**9", "\0", "a" + "+a" * 20_000],
)  # fmt: skip
def test_what_states_no_size_is_refused(text):
    with pytest.raises(ValueError, match="is no size"):
        parse(text)


def test_a_product_with_billions_of_terms_is_refused():
    assert evaluated("*".join(["(a+b+c+d+e)"] * 30), dict.fromkeys("abcde", 2)) is None


@pytest.mark.parametrize("text", ["batch-size", "batch//2", "batch*tokens", "2*other"])
def test_names_that_are_stated_in_no_other_sizes_have_no_value(text):
    assert evaluated(text, {"batch": 4, "size": 2}) is None


def test_a_name_that_looks_like_a_sum_is_a_name_where_it_is_known():
    assert evaluated("batch-size", {"batch-size": 7, "batch": 1, "size": 1}) == 7


@pytest.mark.parametrize(
    "text, value",
    [("64*batch", 192), ("batch*length + 1", 16), ("batch", 3), ("2 + batch*(length+1)", 20), ("other", None),
     ("batch**2", None), ("batch - 1", None), ("__import__('os')", None), ("a b", None), ("x.1_dim_0", None)],
)  # fmt: skip
def test_names_of_dimensions_are_read_as_sums_of_products(text, value):
    assert evaluated(text, {"batch": 3, "length": 5}) == value
