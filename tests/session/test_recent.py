"""A mapping that forgets what was not used for longest."""

from __future__ import annotations

from hypothesis import given, strategies as st

from ontrain.session.recent import Recent


def test_a_look_is_a_use():
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.look("a") == 1
    recent.put("c", 3)
    assert list(recent) == ["a", "c"] and recent.look("b") is None


@given(st.integers(1, 4), st.lists(st.tuples(st.booleans(), st.integers(0, 6))))
def test_it_holds_the_last_used_and_no_more(size, calls):
    recent: Recent[int, int] = Recent(size)
    used: list[int] = []  # the last one last
    for writes, key in calls:
        present = key in used[-size:]
        assert (recent.put(key, key) if writes else recent.look(key)) == (key if writes or present else None)
        if writes or present:
            used = [*(entry for entry in used[-size:] if entry != key), key]
        assert list(recent) == used[-size:]
