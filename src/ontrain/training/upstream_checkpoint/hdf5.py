"""HDF5 files of ORTTrainer.save_checkpoint in onnxruntime.training: groups in groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ontrain.disk import open_file
from ontrain.errors import CheckpointError

__all__ = ["is_hdf5", "read_hdf5"]

_DEPTH = 4
"""Levels of such a file: section, parameter, kind of state, and what a partition says of it."""


def is_hdf5(path: Path) -> bool:
    """Whether a file starts as HDF5 does."""
    with open_file(path) as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"


def read_hdf5(path: Path) -> dict[str, Any]:
    """Return a file's groups as dictionaries, its datasets as arrays, texts as str; what was pickled stays unread.

    Raises:
        CheckpointError: h5py is not installed, or the file is damaged, or refers to others.
    """
    try:
        import h5py
    except ImportError as error:
        raise CheckpointError(
            f"{str(path)!r} is HDF5, as onnxruntime.training wrote from 1.8 on", way_out="pip install h5py"
        ) from error

    size = path.stat().st_size

    def content(group: Any, depth: int) -> dict[str, Any]:
        groups: dict[str, Any] = {}
        for key in group:
            # A link may lead to another file, or back to a group around this one.
            if not isinstance(group.get(key, getlink=True), h5py.HardLink) or depth > _DEPTH:
                raise ValueError(f"{group.name}/{key} is no plain entry")
            entry = group[key]
            if isinstance(entry, h5py.Group):
                groups[key] = content(entry, depth + 1)
            elif entry.external or entry.is_virtual or entry.nbytes > size:
                raise ValueError(f"{entry.name} is not in the file")
            else:
                groups[key] = _plain(entry[()])
        return groups

    try:
        with h5py.File(path, "r") as file:
            return content(file, 1)
    except (
        OSError,
        LookupError,
        ValueError,
        RuntimeError,
        TypeError,
        AttributeError,
        MemoryError,
        ArithmeticError,
    ) as error:
        raise CheckpointError(
            f"cannot read {str(path)!r}", reason=str(error), way_out="give a file of ORTTrainer.save_checkpoint"
        ) from error


def _plain(value: object) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.bool_ | np.integer) else np.asarray(value)
