"""Shares of parameters, and whole tensors of the files that hold them."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from ontrain import CheckpointError
from ontrain.checkpoint import join_parts, shard_name, shards_of
from ontrain.distributed import all_shares, shares
from ontrain.providers import StateSpec
from ontrain.providers.torch.state import TorchState

SHAPES = {"a": (5, 7), "d": (40,), "b": (3,), "c": ()}


def state(size: int) -> TorchState:
    tensors = TorchState([], torch.device("cpu"))
    specs = [StateSpec(name, shape, ir.DataType.FLOAT, "parameter") for name, shape in SHAPES.items()]
    tensors.extend(specs, size)
    return tensors


@pytest.mark.parametrize("size", [1, 2, 3, 4, 16])
def test_every_element_belongs_to_one_process(size):
    tensors = state(size)
    (flat,) = tensors.flat.values()
    assert flat.numel() % size == 0
    counts = {name: torch.zeros(shape).flatten() for name, shape in SHAPES.items()}
    for rank in range(size):
        own = shares(tensors, SHAPES, rank, size)
        assert len({share.parameter for share in own}) == len(own), "one stretch of a parameter at most"
        for share in own:
            counts[share.parameter][share.start : share.stop] += 1
    assert all(bool((count == 1).all()) for count in counts.values())


@pytest.mark.parametrize("size", [2, 4])
def test_a_process_has_no_share_of_a_parameter_that_ends_where_its_own_begin(size):
    shapes = dict.fromkeys(("a", "b", "c", "d"), (64,))
    flat = TorchState([], torch.device("cpu"))
    flat.extend([StateSpec(name, shape, ir.DataType.FLOAT, "parameter") for name, shape in shapes.items()], size)
    parts = {name: flat.place[name][1] for name in shapes}
    part = next(iter(flat.flat.values())).numel() // size
    assert any(start + 64 == rank * part for start in parts.values() for rank in range(1, size)), "a border on a border"
    for rank in range(size):
        own = {share.parameter for share in shares(flat, shapes, rank, size)}
        inside = range(rank * part, (rank + 1) * part)
        assert own == {name for name, start in parts.items() if any(at in inside for at in range(start, start + 64))}


def test_a_share_is_the_parameters_own_memory():
    tensors = state(2)
    (share,) = [part for part in shares(tensors, SHAPES, 1, 2) if part.parameter == "d"]
    tensors.part(share.name, "d", share.start, share.stop)
    tensors[share.name].fill_(2.0)
    assert bool((tensors["d"][share.start :] == 2).all()) and float(tensors["d"][: share.start].sum()) == 0
    assert share.name in tensors and share.name not in list(tensors)


def saved(size: int) -> tuple[dict[str, torch.Tensor], dict[int, dict[str, torch.Tensor]], dict[str, object]]:
    whole = {f"{name}.Moment_1": torch.randn(shape) for name, shape in SHAPES.items()}
    parts = all_shares(state(size), SHAPES, range(size), size)
    shards = {
        rank: {
            f"{name}.Moment_1": whole[f"{name}.Moment_1"].reshape(-1)[start:stop]
            for name, places in parts.items()
            for owner, start, stop in places
            if owner == rank
        }
        for rank in range(size)
    }
    partition = {name: {"original_dim": list(SHAPES[name]), "parts": parts[name]} for name in SHAPES}
    return whole, shards, partition


@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_make_the_whole(size):
    whole, shards, partition = saved(size)
    files = {shard_name("optimizer", rank, size): tensors for rank, tensors in shards.items()}
    tensors = join_parts(shards_of({**files, "optimizer": {}, "model": {}}, "optimizer"), partition)
    assert tensors.keys() == whole.keys()
    assert all(torch.equal(tensors[name], whole[name]) for name in whole)


def test_missing_and_malformed_parts_are_refused():
    _, shards, partition = saved(2)
    with pytest.raises(CheckpointError, match="'d.Moment_1' lacks elements(.|\n)*rank 0"):
        join_parts({1: shards[1]}, partition)
    short = {**shards[1], "d.Moment_1": shards[1]["d.Moment_1"][1:]}
    with pytest.raises(CheckpointError, match="rank 1 has"):
        join_parts({0: shards[0], 1: short}, partition)
    for broken in (None, 3, {"original_dim": [40]}, {"original_dim": [40], "parts": [[0, 0, "x"]]}):
        with pytest.raises(CheckpointError, match="partition of 'd'"):
            join_parts(shards, {**partition, "d": broken})
    for parts in ([[0, 0, 10], [1, 12, 40]], [[0, 0, 10]], [[0, 0, 30], [1, 20, 40]], []):
        with pytest.raises(CheckpointError, match="not the whole"):
            join_parts(shards, {**partition, "d": {"original_dim": [40], "parts": parts}})
