"""Rounds of loops are counted together, and end at the limit."""

from __future__ import annotations

import pytest

from ontrain import OptionError, ProviderError
from ontrain.rounds import LOOP_LIMIT, StoppedError, counted_rounds, loop_limit, stop_if_asked, stopped_by


@pytest.mark.parametrize("wish", ["0", "-1", "many", "1.5", str(2**62)])
def test_a_limit_is_a_whole_number_from_one(monkeypatch, wish):
    monkeypatch.setenv(LOOP_LIMIT, wish)
    with pytest.raises(OptionError, match=LOOP_LIMIT):
        loop_limit()


def test_rounds_of_inner_loops_count_with_those_around(monkeypatch):
    monkeypatch.setenv(LOOP_LIMIT, "3")
    with counted_rounds() as outer:
        outer()
        with counted_rounds() as inner:
            inner()
            inner()
        with pytest.raises(ProviderError, match="more than 3 rounds"):
            outer()


def test_a_run_begins_anew(monkeypatch):
    monkeypatch.setenv(LOOP_LIMIT, "1")
    for _ in range(2):
        with counted_rounds() as another:
            another()


def test_a_loop_ends_in_the_round_in_which_the_caller_asks():
    answers, rounds = iter([False, False, True]), 0
    stopped = pytest.raises(StoppedError, match="stopped")
    with stopped, stopped_by(lambda: next(answers)), counted_rounds() as another:
        while True:
            another()
            rounds += 1
    stop_if_asked()
    assert rounds == 2
