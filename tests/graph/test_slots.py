"""A resident tensor says itself what it is to which parameter."""

from __future__ import annotations

import pytest

from ontrain.graph import Role, role_of
from ontrain.graph.slots import Slot, StateKind, set_slot, slot_of
from tests.graph.values import value


@pytest.mark.parametrize("kind", StateKind)
@pytest.mark.parametrize("owner", ["fc.weight", "fc.weight.exp_avg", "fc.weight[0:8]"])
def test_a_value_says_what_it_was_marked_as(kind, owner):
    marked = set_slot(value("x", [3]), Slot(owner, kind))
    assert slot_of(marked) == Slot(owner, kind) and role_of(marked) is Role.STATE


def test_a_value_without_a_mark_is_no_state():
    assert slot_of(value("fc.weight.exp_avg", [3])) is None


def test_names_are_the_owners_with_the_kind_behind():
    assert Slot("fc.weight", StateKind.EXP_AVG).name == "fc.weight.exp_avg"
    assert Slot("", StateKind.LABEL_COUNT).name == "loss_weight_acc"
