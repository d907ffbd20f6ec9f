"""A checkpoint that several processes write, and one commits: it is there with the files of all, or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from ontrain.checkpoint.folder import begin_checkpoint, commit_checkpoint, write_tensors
from ontrain.distributed import World

__all__ = ["write_together"]


def write_together(
    world: World,
    folder: str | os.PathLike[str],
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    meta: Mapping[str, Any],
    keep: int = 1,
) -> None:
    """Write a checkpoint of all processes. Every process calls this, on a file system that all share.

    Args:
        world: the processes.
        folder: where it shall be, the same for all.
        tensors: for each file of this process (without suffix) its tensors by name.
        meta: anything JSON can hold; the one of process 0 is written.
        keep: how many checkpoints to leave: this checkpoint and older ones.

    Raises:
        CheckpointError, OptionError: as by `write_checkpoint`; nothing was committed.
        ProcessError: it failed on another process; says which and why.
    """

    def write_own() -> None:
        for name, group in tensors.items():
            write_tensors(folder, name, group)

    world.all_succeed("begin the checkpoint", lambda: begin_checkpoint(folder), [0])
    world.all_succeed("write its part of the checkpoint", write_own)
    world.all_succeed("commit the checkpoint", lambda: commit_checkpoint(folder, meta, keep), [0])
