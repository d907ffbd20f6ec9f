"""An optimizer's state in several files, each with the stretches that one process keeps: their names, and the whole."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch

from ontrain.checkpoint.names import parsed_name, tensor_name
from ontrain.errors import CheckpointError

__all__ = ["join_parts", "join_shards", "shard_name", "shards_of"]

Tensors = dict[str, torch.Tensor]


def shard_name(kind: str, rank: int, size: int) -> str:
    """Return the name, without suffix, of the file in which process `rank` of `size` keeps tensors of a kind."""
    return f"{kind}.rank{rank:05d}of{size:05d}"


def shards_of(files: Mapping[str, Tensors], kind: str) -> dict[int, Tensors]:
    """Return the tensors of the files of a kind by rank."""
    matches = {name: re.fullmatch(re.escape(kind) + r"\.rank(\d+)of\d+", name) for name in files}
    return {int(match.group(1)): files[name] for name, match in matches.items() if match}


def join_shards(files: Mapping[str, Tensors], kind: str, partition: Mapping[str, Any]) -> Tensors:
    """Return the whole tensors of the files of a kind: "fc.weight.Moment_1", …; see `join_parts`."""
    return join_parts(shards_of(files, kind), partition)


def join_parts(shards: Mapping[int, Tensors], partition: Mapping[str, Any]) -> Tensors:
    """Return whole tensors from stretches of them.

    Args:
        shards: for each rank its stretches by parameter and kind, "fc.weight.Moment_1", one-dimensional.
        partition: for each parameter its shape as `original_dim`, and as `parts` (rank, start, stop) of the stretches
            of the flattened tensor, by rising start.

    Raises:
        CheckpointError: a stretch is missing, or of another length, or the stretches are not the whole.
    """
    kinds: dict[str, list[str]] = {}
    for tensors in shards.values():
        for name in tensors:
            parameter, kind = parsed_name(name)
            if kind not in kinds.setdefault(parameter, []):
                kinds[parameter].append(kind)
    whole: Tensors = {}
    for parameter, states in kinds.items():
        shape, parts = _described(parameter, partition)
        for kind in states:
            name = tensor_name(parameter, kind)
            pieces = [_piece(name, shards.get(rank, {}).get(name), rank, start, stop) for rank, start, stop in parts]
            whole[name] = torch.cat(pieces).reshape(shape)
    return whole


def _piece(name: str, tensor: torch.Tensor | None, rank: int, start: int, stop: int) -> torch.Tensor:
    """The stretch of a tensor that a rank has, in one dimension."""
    if tensor is None or tensor.numel() != stop - start:
        count = "none of it" if tensor is None else f"{tensor.numel()} of them"
        raise CheckpointError(
            f"{name!r} lacks elements {start} to {stop}",
            reason=f"the file of rank {rank} has {count}",
            way_out="give the files of all processes, of one checkpoint",
        )
    return tensor.reshape(-1)


def _described(parameter: str, partition: Mapping[str, Any]) -> tuple[list[int], list[tuple[int, int, int]]]:
    said: Any = partition.get(parameter)
    try:
        shape = [int(size) for size in said["original_dim"]]
        parts = [(int(rank), int(start), int(stop)) for rank, start, stop in said["parts"]]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the partition of {parameter!r} is {said!r}", reason="it is malformed") from error
    ends = [0, *(stop for _, _, stop in parts)]
    fits = all(start == end <= stop for (_, start, stop), end in zip(parts, ends, strict=False))
    if not fits or ends[-1] != math.prod(shape):
        raise CheckpointError(f"the parts of {parameter!r} are {parts}, and not the whole of {shape}")
    return shape, parts
