"""Sequences that share memory, and what callers get of values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ontrain.inference.stepwise.values import Items, owned, storage


def test_a_sequence_never_changes_whatever_is_made_of_it():
    first = Items("ab")
    longer = first.inserted(2, "c")
    other = first.inserted(-1, "x")
    again = first.inserted(2, "d")
    shorter = longer.erased(-3)
    assert [*map("".join, (first, longer, other, again, shorter))] == ["ab", "abc", "axb", "abd", "bc"]
    assert (len(longer), longer[-1], longer[0]) == (3, "c", "a")


def test_appending_shares_memory_until_two_append_to_one():
    first = Items("a")
    second = first.inserted(1, "b")
    third = second.inserted(2, "c")
    fork = first.inserted(1, "z")
    assert first._items is second._items is third._items
    assert fork._items is not first._items and [*fork] == ["a", "z"] and [*third] == ["a", "b", "c"]


@pytest.mark.parametrize(("call", "at"), [("__getitem__", 2), ("__getitem__", -3), ("erased", 2)])
def test_a_place_outside_of_a_sequence_is_refused(call, at):
    with pytest.raises(IndexError, match=f"position {at} of a sequence of 2"):
        getattr(Items("ab"), call)(at)


def test_a_caller_gets_memory_that_nothing_else_has():
    fed = torch.arange(4.0)
    taken = {storage(fed)}
    results = owned(Items([fed[:2], fed, torch.ones(2)]), taken)
    places = [storage(result) for result in results]
    assert len({*places, storage(fed)}) == 4 and taken == {*places, storage(fed)}
    np.testing.assert_array_equal(results[0], [0, 1])
