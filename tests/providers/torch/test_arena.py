"""Places in an arena: apart while alive together, and hardly more than lifetimes need."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from ontrain.providers.torch.arena import place
from ontrain.providers.torch.buffers import Storage


def storages(rows: list[tuple[int, int, int]]) -> list[Storage]:
    return [Storage(size, born=born, dies=born + length) for size, born, length in rows]


def needed(allocations: list[Storage]) -> int:
    """The most bytes that are alive at once, in lines of 64."""
    times = {storage.born for storage in allocations}
    return max((sum(-(-o.nbytes // 64) * 64 for o in allocations if o.born <= t <= o.dies) for t in times), default=0)


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 30), st.integers(0, 30)), max_size=40))
def test_what_is_alive_together_lies_apart(rows):
    allocations = storages(rows)
    top = place(allocations)
    assert needed(allocations) <= top <= sum(-(-storage.nbytes // 64) * 64 for storage in allocations)
    for i, storage in enumerate(allocations):
        assert storage.offset % 64 == 0 and storage.offset >= 0 and storage.offset + storage.nbytes <= top
        for other in allocations[:i]:
            together = storage.born <= other.dies and other.born <= storage.dies
            apart = storage.offset + storage.nbytes <= other.offset or other.offset + other.nbytes <= storage.offset
            assert apart or not together


@pytest.mark.parametrize("layers", [1, 4, 24])
def test_masks_that_live_long_do_not_cut_up_the_arena(layers):
    """Each layer makes a large result, a mask beside it that lives to the end, and a still larger result."""
    rows = []
    for i in range(layers):
        rows += [(64 * 100, 4 * i, 2), (64 * 7, 4 * i + 1, 4 * (layers - i)), (64 * (101 + i), 4 * i + 2, 2)]
    allocations = storages(rows)
    assert place(allocations) <= 1.1 * needed(allocations)


def test_an_empty_program_needs_nothing():
    assert place([]) == 0
