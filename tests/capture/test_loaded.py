"""Which loaded files have something under a name: those of now, whatever else stands among them."""

from __future__ import annotations

import sys
from types import ModuleType

from ontrain.capture.loaded import files_with


class _WithoutVariables:
    __slots__ = ()


def test_a_file_is_found_as_soon_as_it_has_the_name_and_no_longer(monkeypatch):
    file = ModuleType("tests_loaded")
    monkeypatch.setitem(sys.modules, file.__name__, file)
    assert files_with("linear_sum_assignment_of_a_test") == []
    file.linear_sum_assignment_of_a_test = 3
    assert files_with("linear_sum_assignment_of_a_test") == [(file, 3)]
    del file.linear_sum_assignment_of_a_test
    assert files_with("linear_sum_assignment_of_a_test") == []


def test_a_name_that_holds_none_is_there():
    file = sys.modules[__name__]
    vars(file)["_nothing_of_a_test"] = None
    try:
        assert files_with("_nothing_of_a_test") == [(file, None)]
    finally:
        del vars(file)["_nothing_of_a_test"]


def test_what_is_no_file_is_passed_over(monkeypatch):
    monkeypatch.setitem(sys.modules, "tests_loaded_none", None)
    monkeypatch.setitem(sys.modules, "tests_loaded_slots", _WithoutVariables())
    assert [name for _, name in files_with("test_what_is_no_file_is_passed_over")] == [
        test_what_is_no_file_is_passed_over
    ]
