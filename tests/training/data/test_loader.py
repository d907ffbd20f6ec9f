"""A resumed loader hands out what the stopped one would have, whatever was fetched ahead."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch.utils.data import IterableDataset, TensorDataset

from ontrain import CheckpointError, OptionError
from ontrain.training.data import ResumableDataLoader, random_state, restore_random_state, transfer


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def endless(loader: ResumableDataLoader) -> Iterator[list[int]]:
    while True:
        for (batch,) in loader:
            yield batch.tolist()


def ahead(loader: ResumableDataLoader, count: int) -> list[list[int]]:
    return list(islice(endless(loader), count))


def moved(state: dict) -> dict:
    """Through a checkpoint's JSON."""
    return json.loads(json.dumps(state))


@given(
    size=st.integers(1, 30), batch=st.integers(1, 7), stop=st.integers(0, 20), shuffle=st.booleans(), drop=st.booleans()
)
def test_a_resumed_loader_goes_on_behind_the_last_batch(size, batch, stop, shuffle, drop):
    def fresh_loader() -> ResumableDataLoader:
        return ResumableDataLoader(numbers(size), min(batch, size), shuffle=shuffle, seed=3, drop_last=drop)

    whole = ahead(fresh_loader(), stop + 12)
    first = fresh_loader()
    assert ahead(first, stop) == whole[:stop]
    second = fresh_loader()
    second.load_state_dict(moved(first.state_dict()))
    assert ahead(second, 12) == whole[stop:]


class Recorder:
    """A GPU's streams, for a machine without one: what is asked of them, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def wait_stream(self, other: object) -> None:
        self.said.append("wait")


def test_to_a_gpu_the_next_batch_sets_out_before_this_one_is_used(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: "uploads")
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: recorder)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: recorder.said.append("record"))
    monkeypatch.setattr(transfer, "_pinned", lambda tensor: Sent(tensor, recorder))
    for batch in transfer.on_device([{"x": torch.tensor(n)} for n in range(3)], torch.device("cuda")):
        recorder.said.append(f"use {int(batch['x'])}")
    assert recorder.said == [
        "send 0", "wait", "record", "send 1", "use 0", "wait", "record", "send 2", "use 1", "wait", "record", "use 2",
    ]  # fmt: skip


class Sent:
    def __init__(self, tensor: torch.Tensor, recorder: Recorder) -> None:
        self.tensor, self.recorder = tensor, recorder

    def to(self, device: torch.device, non_blocking: bool) -> torch.Tensor:
        assert device.type == "cuda" and non_blocking
        self.recorder.said.append(f"send {int(self.tensor)}")
        return self.tensor


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_batches_come_where_they_are_wanted_and_a_resumed_loader_goes_on(device):
    data = [{"x": torch.full((2,), float(n)), "name": str(n), "more": [torch.tensor(n)]} for n in range(10)]
    plain, loader = (ResumableDataLoader(data, 3, seed=1, device=target) for target in (None, device))
    seen = []
    for number, (batch, wanted) in enumerate(zip(loader, plain, strict=True)):
        assert batch["x"].device.type == batch["more"][0].device.type == device
        assert torch.equal(batch["x"].cpu(), wanted["x"]) and batch["name"] == wanted["name"]
        seen.append(batch["x"][:, 0].tolist())
        if number == 1:
            state = moved(loader.state_dict())
    resumed = ResumableDataLoader(data, 3, seed=1, device=device)
    resumed.load_state_dict(state)
    assert [batch["x"][:, 0].tolist() for batch in resumed] == seen[2:]


@pytest.mark.parametrize("device", ["gpu", 3.5])
def test_a_device_that_is_none_is_refused(device):
    with pytest.raises(OptionError, match="device is"):
        ResumableDataLoader(numbers(3), device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(OptionError, match="'cuda' is not available"):
        ResumableDataLoader(numbers(3), device="cuda")


def test_every_epoch_has_all_samples_once_in_another_order():
    loader = ResumableDataLoader(numbers(10), 4, seed=1)
    epochs = [[x for (batch,) in loader for x in batch.tolist()] for _ in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs) and loader.epoch == 3
    assert len({tuple(epoch) for epoch in epochs}) == 3 and len(loader) == 3
    other = ResumableDataLoader(numbers(10), 4, seed=2)
    assert [x for (batch,) in other for x in batch.tolist()] != epochs[0]
    plain = ResumableDataLoader(numbers(10), 4, shuffle=False, drop_last=True)
    assert [batch.tolist() for (batch,) in plain] == [[0, 1, 2, 3], [4, 5, 6, 7]] and len(plain) == 2


def test_what_workers_have_fetched_ahead_was_not_seen():
    whole = ahead(ResumableDataLoader(numbers(24), 3, seed=5), 8)
    loader = ResumableDataLoader(numbers(24), 3, seed=5, num_workers=1, prefetch_factor=4)
    batches = iter(loader)
    assert [next(batches)[0].tolist() for _ in range(3)] == whole[:3]
    assert loader.state_dict()["samples"] == 9
    other = ResumableDataLoader(numbers(24), 3, seed=5)
    other.load_state_dict(loader.state_dict())
    assert ahead(other, 5) == whole[3:]


@pytest.mark.parametrize(("size", "world"), [(24, 2), (24, 4), (22, 2), (21, 4), (3, 4)])
def test_processes_share_out_the_batch_of_one(size, world):
    (joined,) = [list(endless_epoch(ResumableDataLoader(numbers(size), 8, seed=9)))]
    ranks = [
        list(endless_epoch(ResumableDataLoader(numbers(size), 8 // world, seed=9, rank=rank, world_size=world)))
        for rank in range(world)
    ]
    assert len({tuple(map(len, batches)) for batches in ranks}) == 1  # all as long
    for together, *shares in zip(joined, *ranks, strict=True):
        dealt = [x for share in shares for x in share]
        assert dealt[: len(together)] == together and len(dealt) - len(together) < world


def endless_epoch(loader: ResumableDataLoader) -> Iterator[list[int]]:
    for (batch,) in loader:
        yield batch.tolist()


@pytest.mark.parametrize(("batch", "world"), [(2, 1), (5, 1), (1, 3), (4, 2)])
def test_a_position_fits_other_batches_and_processes(batch, world):
    first = ResumableDataLoader(numbers(20), 4, seed=2, world_size=2)
    second = ResumableDataLoader(numbers(20), 4, seed=2, world_size=2, rank=1)
    seen = [*next(endless_epoch(first)), *next(endless_epoch(second))]
    rest = []
    for rank in range(world):
        loader = ResumableDataLoader(numbers(20), batch, seed=2, rank=rank, world_size=world)
        loader.load_state_dict(moved(first.state_dict()))
        rest += [x for batch in endless_epoch(loader) for x in batch]
    assert set(seen).isdisjoint(rest) and set(seen) | set(rest) == set(range(20))


def test_the_global_generators_are_left_alone():
    before = torch.get_rng_state()
    ahead(ResumableDataLoader(numbers(9), 2, seed=4), 7)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seed": 1}, "seed 1, this loader has 0"),
        ({"size": 9}, "size 9, this loader has 10"),
        ({"shuffle": False}, "shuffle False"),
        ({"samples": -1}, "samples -1"),
        ({"samples": 2.0}, "samples 2.0"),
        ({"epoch": None}, "epoch None"),
    ],
)
def test_the_position_in_another_order_is_refused(change, says):
    loader = ResumableDataLoader(numbers(10), 2)
    ahead(loader, 2)
    before = loader.state_dict()
    with pytest.raises(CheckpointError, match=says):
        loader.load_state_dict({**before, **change})
    with pytest.raises(CheckpointError):
        loader.load_state_dict({})
    assert loader.state_dict() == before


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ResumableDataLoader(Stream(), 2), "no samples by number"),
        (lambda: ResumableDataLoader([], 2), "no samples by number"),
        (lambda: ResumableDataLoader([1], 0), "batch_size is 0"),
        (lambda: ResumableDataLoader([1], 1, seed=-1), "seed is -1"),
        (lambda: ResumableDataLoader([1], 1, rank=2, world_size=2), "rank is 2"),
        (lambda: ResumableDataLoader([1], 1, sampler=[0]), "'sampler' is decided"),
        (lambda: ResumableDataLoader([1], 1, num_wrkers=2), "num_wrkers"),
        (lambda: ResumableDataLoader([1], 1, num_workers=-2), "num_workers"),
    ],
)
def test_what_cannot_be_is_refused(make, says):
    with pytest.raises(OptionError, match=says):
        make()


def draws() -> list[float]:
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), float(torch.rand(()))]


def test_the_global_generators_go_on_where_they_were():
    draws()  # an odd number of Gaussians: the generators hold the other of the pair
    state = moved(random_state())
    wanted = [draws(), draws()]
    random.seed(99), np.random.seed(99), torch.manual_seed(99)
    restore_random_state(state)
    assert [draws(), draws()] == wanted


@pytest.mark.parametrize(
    "change", [{"python": None}, {"numpy": ["AAAA", 0, 0, 0.0]}, {"torch": "AAAA"}, {"torch": "?"}]
)
def test_a_state_of_generators_that_is_none_changes_nothing(change):
    state = random_state()
    random.seed(99)
    np.random.seed(99)
    before = random_state()
    with pytest.raises(CheckpointError, match="no state of random generators"):
        restore_random_state({**state, **change})
    assert random_state() == before
