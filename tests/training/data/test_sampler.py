"""Load-balancing samplers: who gets what, and that nobody waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ontrain.errors import OptionError
from ontrain.training.utils.data import LoadBalancingDistributedBatchSampler, LoadBalancingDistributedSampler

LENGTHS = [int(n) for n in np.random.default_rng(0).integers(1, 500, 101)]


def samplers(world: int, lengths: list[int] = LENGTHS, **options: Any) -> list[LoadBalancingDistributedSampler]:
    data = [[0] * n for n in lengths]
    return [LoadBalancingDistributedSampler(data, len, world, rank, **options) for rank in range(world)]


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 6), st.booleans(), st.booleans(),
    st.none() | st.integers(1, 9), st.sampled_from([0, 0.3, 1]),
)  # fmt: skip
def test_every_sample_is_dealt(
    lengths: list[int], world: int, shuffle: bool, drop: bool, group: int | None, level: float
) -> None:
    if drop and len(lengths) < world:
        return
    ranks = samplers(world, lengths, shuffle=shuffle, drop_last=drop, group_size=group, random_level=level)
    dealt = [list(rank) for rank in ranks]
    assert {len(indices) for indices in dealt} == {len(ranks[0])}
    flat = [i for indices in dealt for i in indices]
    assert set(flat) <= set(range(len(lengths)))
    if drop:
        assert len(set(flat)) == len(flat) == len(lengths) // world * world
    else:
        assert set(flat) == set(range(len(lengths)))
        assert len(flat) < len(lengths) + world


def test_neighbours_by_complexity_go_to_the_same_step() -> None:
    ranks = samplers(4)
    steps = list(zip(*ranks, strict=True))
    order = np.argsort(LENGTHS, kind="stable")
    place = {int(index): at for at, index in enumerate(order)}
    whole = [step for step in steps if len(set(step)) == 4 and 0 not in {place[i] for i in step}]
    assert whole
    assert all(max(place[i] for i in step) - min(place[i] for i in step) == 3 for step in whole)


def test_epochs_differ_and_repeat() -> None:
    sampler = samplers(2)[0]
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    sampler.set_epoch(0)
    assert first == list(sampler) != second
    assert list(samplers(2, shuffle=False)[0]) == list(samplers(2, shuffle=False)[0])


def test_groups_stay_together() -> None:
    sampler = samplers(1, group_size=10)[0]
    indices = list(sampler)
    groups = [index // 10 for index in indices]
    runs = [g for at, g in enumerate(groups) if not at or groups[at - 1] != g]
    assert len(runs) == len(set(runs)) == 11
    assert runs != sorted(runs)


def test_complexity_is_asked_once_a_sample() -> None:
    asked = []

    def measured(sample: list[int]) -> int:
        asked.append(len(sample))
        return len(sample)

    sampler = LoadBalancingDistributedSampler([[0] * n for n in LENGTHS], measured, 2, 0)
    list(sampler), list(sampler)
    assert len(asked) == len(LENGTHS)


@pytest.mark.parametrize("drop", [False, True])
def test_batches_are_as_many_on_each_process(drop: bool) -> None:
    def by_tokens(indices: list[int]) -> list[list[int]]:
        batches: list[list[int]] = [[]]
        for index in indices:
            if batches[-1] and sum(LENGTHS[i] for i in batches[-1]) + LENGTHS[index] > 900:
                batches.append([])
            batches[-1].append(index)
        return batches

    batch_samplers = [LoadBalancingDistributedBatchSampler(sampler, by_tokens, drop) for sampler in samplers(3)]
    counts = [len(by_tokens(list(batch_sampler.sampler))) for batch_sampler in batch_samplers]
    assert {len(list(batch_sampler)) for batch_sampler in batch_samplers} == {min(counts) if drop else max(counts)}
    before = list(batch_samplers[0])
    batch_samplers[0].set_epoch(3)
    assert list(batch_samplers[0]) != before


def test_wrong_values() -> None:
    data = [[0]] * 4
    for options, said in (
        ({"world_size": 2, "rank": 2}, "rank is 2"),
        ({"world_size": 2, "rank": 0, "random_level": 1.5}, "random_level"),
        ({"world_size": 2, "rank": 0, "group_size": 0}, "group_size"),
        ({}, "process group"),
    ):
        with pytest.raises(OptionError, match=said):
            LoadBalancingDistributedSampler(data, len, **options)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="0 samples"):
        LoadBalancingDistributedSampler([], len, 1, 0)
    with pytest.raises(OptionError, match="drops samples"):
        LoadBalancingDistributedBatchSampler(LoadBalancingDistributedSampler(data, len, 2, 0, drop_last=True), list)
    with pytest.raises(OptionError, match="is a list"):
        LoadBalancingDistributedBatchSampler(data, list)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no batch for rank 0"):
        LoadBalancingDistributedBatchSampler(LoadBalancingDistributedSampler(data, len, 2, 0), lambda _: [])


def test_what_is_no_function_is_refused_at_once() -> None:
    nothing: Any = None
    with pytest.raises(OptionError, match="complexity_fn is None"):
        LoadBalancingDistributedSampler([[0]], nothing, 1, 0)
    with pytest.raises(OptionError, match="batch_fn is None"):
        LoadBalancingDistributedBatchSampler(samplers(1)[0], nothing)
