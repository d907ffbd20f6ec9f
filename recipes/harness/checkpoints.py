"""Numbered checkpoint folders, and the state of an eager run: weights, moments, random numbers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ontrain.errors import CheckpointError

Tensors = dict[str, dict[str, Tensor]]


def existing(folder: Path, prefix: str) -> dict[int, Path]:
    """Return the checkpoints `{prefix}{number}` of a folder by number, the newest last."""
    paths = folder.iterdir() if folder.is_dir() else ()
    name = re.compile(re.escape(prefix) + r"(\d+)")
    return dict(sorted((int(m[1]), path) for path in paths if (m := name.fullmatch(path.name)) and path.is_dir()))


def prune(folder: Path, prefix: str, keep: int, written: Path) -> None:
    """Remove all but the newest `keep` checkpoints, of which the one just written is the newest."""
    older = [path for path in existing(folder, prefix).values() if path != written]
    for path in [*older, written][:-keep]:
        shutil.rmtree(path, ignore_errors=True)


def newest(
    paths: Sequence[Path], load: Callable[[Path], Any], refused: Callable[[Path, CheckpointError], None]
) -> tuple[Path, Any]:
    """Load the first of the checkpoints that is whole; return its path and what `load` returned.

    `refused` is told of those before it that are damaged; where all are, the last one's error is raised.
    """
    for path in paths[:-1]:
        try:
            return path, load(path)
        except CheckpointError as error:
            refused(path, error)
    return paths[-1], load(paths[-1])


def eager_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensors:
    """Return what an eager run has changed: weights, moments, and torch's random state on the CPU and on a GPU."""
    named = dict(model.named_parameters())
    moments = {f"{name}.{key}": value for name, p in named.items() for key, value in optimizer.state[p].items()}
    state = {"model": named, "optimizer": moments, "random": {"cpu": torch.get_rng_state()}}
    if (device := next(iter(named.values())).device).type == "cuda":
        state["random"]["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_eager_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any], folder: Any, *, random: bool = True
) -> None:
    """Take over what `eager_state` returned.

    Args:
        model, optimizer: of the same names and shapes.
        state: what was read.
        folder: what an error names.
        random: whether torch's random state is taken over, too.
    """
    moments: dict[str, dict[str, Tensor]] = {}
    for key, value in state.get("optimizer", {}).items():
        name, _, kind = key.rpartition(".")
        moments.setdefault(name, {})[kind] = value
    try:
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(state["model"][name])
                optimizer.state[p] = {k: v if k == "step" else v.to(p.device) for k, v in moments[name].items()}
        if random:
            torch.set_rng_state(state["random"]["cpu"])
            if "cuda" in state["random"] and p.is_cuda:
                torch.cuda.set_rng_state(state["random"]["cuda"], p.device)
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(f"{folder} holds no state of this model and engine", reason=str(error)) from error
