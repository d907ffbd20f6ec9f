"""The state of a trainer among several processes: whose moments it keeps, in a state_dict and in files.

In ZeRO stage 1 a process keeps the moments of its share of the elements: one stretch, at most, of each parameter. Its
state_dict has these stretches, and as `partition_info` where they belong. In files there are the stretches of all
processes, and whoever reads them gets the whole, and takes of it what is its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ontrain.checkpoint import join_shards, shard_name, shards_of, tensor_name
from ontrain.distributed import Reduction, all_shares
from ontrain.errors import CheckpointError
from ontrain.graph import Slot, StateKind
from ontrain.internals import tensor_of
from ontrain.session import TrainingSession

__all__ = [
    "GRADIENT", "Place", "check_partition", "joined_files", "moment_places", "own_sums", "partition_of", "place_of",
    "placed_moments", "shard_files", "wanted_moments",
]  # fmt: skip

Tensors = dict[str, torch.Tensor]
GRADIENT = "Gradient"
"""The kind under which a state_dict has a parameter's accumulated gradient."""
_MOMENTS, _SUMS = "optimizer", "accumulators"


@dataclass(frozen=True)
class Place:
    """Number of a process, of how many, and the ZeRO stage in which they train."""

    rank: int = 0
    size: int = 1
    stage: int = 0


def place_of(session: TrainingSession) -> Place:
    """Return the session's place among the processes."""
    exchange = session.exchange
    return Place() if exchange is None else Place(exchange.rank, exchange.size, int(not exchange.keeps_moments))


def moment_places(session: TrainingSession) -> dict[str, dict[StateKind, str]]:
    """Return the names of the resident moments that this process keeps, by parameter and kind."""
    reduction, kinds_of = _sharing(session), session.optimizer.state_kinds
    if reduction is None:
        owners = [(name, name) for name in session.trainable]
    else:
        owners = [(share.parameter, share.name) for share in reduction.shares]
    return {parameter: {kind: Slot(owner, kind).name for kind in kinds_of(parameter)} for parameter, owner in owners}


def partition_of(session: TrainingSession) -> dict[str, Any]:
    """Return for each parameter its shape, and which process keeps the moments of which of its elements."""
    reduction = _sharing(session)
    assert reduction is not None, "every process keeps whole moments"
    state, place = reduction.state, place_of(session)
    shapes = {name: tuple(tensor_of(state[name]).shape) for name in session.trainable}
    parts = all_shares(state, shapes, range(place.size), place.size)
    return {
        name: {"original_dim": list(shape), "parts": [list(part) for part in parts[name]]}
        for name, shape in shapes.items()
    }


def check_partition(session: TrainingSession, state: Mapping[str, Any]) -> bool:
    """Return whether the moments of a state are this process's share, and not whole.

    Raises:
        CheckpointError: they are the share of another process.
    """
    partition = state.get("partition_info")
    if not partition:
        return False
    place, said = place_of(session), state.get("trainer_options", {})
    theirs = f"rank {said.get('world_rank')} of {said.get('world_size')}"
    own = place.stage and (said.get("world_rank"), said.get("world_size")) == (place.rank, place.size)
    if not own or partition != partition_of(session):
        raise CheckpointError(
            f"the state is the share of {theirs}, this is rank {place.rank} of {place.size}, stage {place.stage}",
            way_out="load a folder by load_checkpoint, which joins the shares, or join the states by "
            "aggregate_checkpoints",
        )
    return True


def wanted_moments(session: TrainingSession, own: bool) -> Tensors:
    """Return what a state has to have of moments, as tensors without values: whole ones, or the own share."""
    moments: Tensors = {}
    places = moment_places(session)
    for name in session.trainable if not own else places:
        for kind in session.optimizer.state_kinds(name):
            parameter = tensor_of(session.state[name])
            if own:
                parameter = tensor_of(session.state[places[name][kind]])
            dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
            moments[Slot(name, kind).name] = torch.empty(parameter.shape, dtype=dtype, device="meta")
    return moments


def placed_moments(session: TrainingSession, moments: Tensors, own: bool) -> Tensors:
    """Return moments under their resident names; of whole ones what this process keeps."""
    reduction = _sharing(session)
    if reduction is None:
        return moments
    placed: Tensors = {}
    for share in reduction.shares:
        for kind in session.optimizer.state_kinds(share.parameter):
            tensor = moments.get(Slot(share.parameter, kind).name)
            if tensor is not None:
                stretch = tensor if own else tensor.reshape(-1)[share.start : share.stop]
                placed[Slot(share.name, kind).name] = stretch
    return placed


def own_sums(session: TrainingSession, state: Mapping[str, Any], sums: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accumulated gradients that this process goes on with: what all have is to stay the same sum.

    Raises:
        CheckpointError: they are those of another process than this one.
    """
    place, said = place_of(session), state.get("trainer_options", {})
    saved = Place(int(said.get("world_rank", 0)), int(said.get("world_size", 1)))
    if (saved.rank, saved.size) == (place.rank, place.size):
        return dict(sums)
    if saved.size == 1:  # process 0 goes on with them, the others with nothing
        return dict(sums) if place.rank == 0 else {name: torch.zeros_like(t) for name, t in sums.items()}
    raise CheckpointError(
        f"the state holds the accumulated gradients of rank {saved.rank} of {saved.size} only, and this is rank "
        f"{place.rank} of {place.size}",
        way_out="load a folder by load_checkpoint, which has those of all processes, or save after an update",
    )


def shard_files(optimizer: Mapping[str, Tensors], rank: int, size: int, stage: int) -> dict[str, Tensors]:
    """Return the optimizer's state of one process by file: moments that all have are process 0's to write."""
    moments: Tensors = {}
    sums: Tensors = {}
    for parameter, kinds in optimizer.items():
        for kind, tensor in kinds.items():
            (sums if kind == GRADIENT else moments)[tensor_name(parameter, kind)] = tensor
    files: dict[str, Tensors] = {}
    if stage:
        files[shard_name(_MOMENTS, rank, size)] = moments
    elif rank == 0:
        files[_MOMENTS] = moments
    if sums:
        files[shard_name(_SUMS, rank, size)] = sums
    return files


def joined_files(
    files: Mapping[str, Tensors], plain: Mapping[str, Any], place: Place
) -> tuple[Tensors, dict[str, Any]]:
    """Return the optimizer's state in the files for one process: whole moments, its own sums of gradients.

    The sums of a run of another size are dealt out in turn.

    Raises:
        CheckpointError: a share is missing.
    """
    optimizer, plain = dict(files.get(_MOMENTS, {})), dict(plain)
    partition = plain.pop("partition_info", None)
    if partition is not None:
        optimizer |= join_shards(files, _MOMENTS, partition)
    sums = shards_of(files, _SUMS)
    if sums:
        mine = [tensors for rank, tensors in sums.items() if rank % place.size == place.rank]
        for name, like in next(iter(sums.values())).items():
            optimizer[name] = sum((tensors[name] for tensors in mine), torch.zeros_like(like))
        own = {"world_rank": place.rank, "world_size": place.size}
        plain["trainer_options"] = {**plain.get("trainer_options", {}), **own}
    return optimizer, plain


def _sharing(session: TrainingSession) -> Reduction | None:
    exchange = session.exchange
    return exchange if isinstance(exchange, Reduction) and not exchange.keeps_moments else None
