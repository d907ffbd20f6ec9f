"""The files of all processes of a run of onnxruntime.training as one state."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ontrain.errors import CheckpointError
from ontrain.training.upstream_checkpoint.files import COUNT, HALF, Entry, File, read_file

__all__ = ["Upstream", "files_of_run", "read_upstream_checkpoint"]


@dataclass
class Upstream:
    """What was in the files of one run.

    Attributes:
        flat: the state as `experimental_state_dict` gives it, tensors by name; "Step" counts from 0.
        beside: what the user had put beside it.
        optimizer: onnxruntime's name of the optimizer, where it can be told.
    """

    flat: dict[str, torch.Tensor] = field(default_factory=dict)
    beside: dict[str, Any] = field(default_factory=dict)
    optimizer: str | None = None


def files_of_run(folder: Path, prefix: str) -> list[Path]:
    """Return the files of onnxruntime's experimental_save_checkpoint, by rank; none if there is no such checkpoint.

    Raises:
        CheckpointError: files of some processes are missing; their ranks are named.
    """
    single = folder / f"{prefix}.ort.pt"
    if single.is_file():
        return [single]
    name = re.compile(re.escape(prefix) + r"\.ZeRO\.(\d+)\.(\d+)\.ort\.pt")
    matches = [(match, path) for path in folder.glob("*.ort.pt") if (match := name.fullmatch(path.name))]
    ranks = {int(match[1]): path for match, path in matches}
    world = max((int(match[2]) + 1 for match, _ in matches), default=0)
    if len(ranks) != world:
        raise CheckpointError(
            f"the checkpoint {prefix!r} in {folder} is of {world} processes, there are files of ranks {sorted(ranks)}",
            way_out="copy the files of all processes into one folder",
        )
    return [path for _, path in sorted(ranks.items())]


def read_upstream_checkpoint(paths: Sequence[Path]) -> Upstream:
    """Return the state in one file, or in those of all processes of a ZeRO run.

    Upstream counts updates from 1, and keeps names under the module that it wraps around model and loss, and copies of
    the weights in half precision: the first two are translated, the copies left out.

    Args:
        paths: in the order of ranks, unless the files tell theirs.

    Raises:
        CheckpointError: a file is no such checkpoint, is torn, or holds anything but tensors and plain values; or the
            files are not those of one run.
    """
    files = [read_file(path) for path in paths]
    ranks = [position if file.rank is None else file.rank for position, file in enumerate(files)]
    if len(files) > 1 and sorted(ranks) != list(range(len(files))):
        raise CheckpointError(f"the files are of ranks {sorted(ranks)}", way_out="give each process's file once")
    files = [file for _, file in sorted(zip(ranks, files, strict=True), key=lambda pair: pair[0])]
    joined = _Joined(len(files) > 1)
    for file in files:
        for entry in file.entries:
            joined.add(entry, file)
    beside = {key: value for file in files for key, value in file.beside.items()}
    return Upstream(joined.flat(), beside, next((file.optimizer for file in files if file.optimizer), None))


class _Joined:
    """Tensors by their flat names; parts wait until all files were read."""

    def __init__(self, several: bool) -> None:
        self._several = several
        self._whole: dict[str, torch.Tensor] = {}
        self._halves: dict[str, torch.Tensor] = {}
        self._pieces: dict[tuple[str, str], list[torch.Tensor]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def add(self, entry: Entry, file: File) -> None:
        self._shapes |= file.shapes
        name = f"{entry.kind}_{entry.name}" if entry.kind else entry.name
        if entry.kind == HALF:
            self._halves[entry.name] = entry.tensor
            self._shapes[entry.name] = tuple(entry.tensor.shape)
        elif entry.kind == COUNT:
            self._whole["Step"] = entry.tensor - 1
        elif entry.cut and self._several:
            self._pieces.setdefault((name, entry.name), []).append(entry.tensor.flatten())
        elif not _equal(self._whole.setdefault(name, entry.tensor), entry.tensor):
            raise CheckpointError(
                f"{entry.key!r} in {str(file.path)!r} differs from that of another process",
                way_out="give the files of one run, saved at the same step",
            )
        elif not entry.kind:
            self._shapes.setdefault(entry.name, tuple(entry.tensor.shape))

    def flat(self) -> dict[str, torch.Tensor]:
        joined = dict(self._whole)
        for (name, parameter), pieces in self._pieces.items():
            values, shape = torch.cat(pieces), self._shapes.get(parameter)
            if shape is None or values.numel() != math.prod(shape):
                raise CheckpointError(
                    f"the parts of {name!r} have {values.numel()} elements together, the whole has shape {shape}",
                    way_out="give the files of all processes of the run",
                )
            joined[name] = values.reshape(shape)
        # What has no original beside it is a parameter that is called so.
        return joined | {f"{name}_fp16": half for name, half in self._halves.items() if name not in joined}


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)
