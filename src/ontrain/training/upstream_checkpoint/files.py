"""One file of onnxruntime.training, of either layout, as a list of tensors that know what they are."""

from __future__ import annotations

import os
import re
import struct
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ontrain.disk import open_file
from ontrain.errors import CheckpointError
from ontrain.internals import tensor_of
from ontrain.training.upstream_checkpoint.hdf5 import is_hdf5, read_hdf5

__all__ = ["COUNT", "HALF", "Entry", "File", "read_file"]

HALF, COUNT = "half", "count"
_MOMENTS = ("Moment_1", "Moment_2")
_KEY = re.compile(
    r"(?:(?P<kind>Moment_1|Moment_2|Update_Count)_)?(?P<name>.+?)(?P<half>_fp16)?(?P<cut>_view_\d+)?", re.DOTALL
)
_PRECISIONS = ("full_precision", "fp32")


@dataclass(frozen=True)
class Entry:
    """A tensor of a file.

    Attributes:
        key: where it is in the file.
        kind: "" for a parameter, "Moment_1", "Moment_2", HALF for a parameter's copy, COUNT for a number of updates.
        name: the parameter's, in the module itself; "" for a count of all.
        cut: whether it is a part of a flattened tensor.
        tensor: the values.
    """

    key: str
    kind: str
    name: str
    cut: bool
    tensor: torch.Tensor


@dataclass
class File:
    """What one process wrote.

    Attributes:
        path: of the file.
        rank: of the process; None where the file does not say.
        entries: its tensors.
        shapes: of tensors that are cut, by the parameter's name, as far as the file tells.
        beside: what the user had put beside the state.
        optimizer: onnxruntime's name of the optimizer, where it can be told.
    """

    path: Path
    rank: int | None = None
    entries: list[Entry] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    beside: dict[str, Any] = field(default_factory=dict)
    optimizer: str | None = None


def read_file(path: Path) -> File:
    """Read a file of either layout.

    Raises:
        CheckpointError: it is no checkpoint, is torn, or holds anything but tensors and plain values.
    """
    content = _content(path)
    inner = content.get("model")
    if not isinstance(inner, Mapping):
        return _flat(path, content, {})
    if any(isinstance(inner.get(key), Mapping) for key in _PRECISIONS):
        return _nested(path, content, {})
    beside = {key: value for key, value in content.items() if key != "model"}
    return (_nested if isinstance(inner.get("model"), Mapping) else _flat)(path, inner, beside)


def _flat(path: Path, state: Mapping[str, object], beside: dict[str, Any]) -> File:
    """The first layout: what a tensor is, its name says."""
    file = File(path, beside=beside)
    for key, value in state.items():
        match = _KEY.fullmatch(str(key))
        if match is None or key == "Step" or match["kind"] == "Update_Count":
            file.entries.append(Entry(key, COUNT, "", False, _tensor(value, key, path, number=True)))
            file.optimizer = "LambOptimizer" if key == "Step" else "AdamOptimizer"
            continue
        kind = HALF if match["half"] else match["kind"] or ""
        file.entries.append(Entry(key, kind, _own(match["name"]), bool(match["cut"]), _tensor(value, key, path)))
    return file


def _nested(path: Path, state: Mapping[str, object], beside: dict[str, Any]) -> File:
    """The later layout: sections; `partition_info` names what is cut."""
    model, optimizer, cut, options = (
        _section(state, name, path) for name in ("model", "optimizer", "partition_info", "trainer_options")
    )
    if options.get("horizontal_parallel_size", 1) != 1:
        raise CheckpointError(
            f"{str(path)!r} is of a run with horizontal_parallel_size {options['horizontal_parallel_size']}",
            reason="its weights are cut along their rows and columns",
            way_out="join them with onnxruntime's aggregate_checkpoints first",
        )
    user = state.get("user_dict")
    if isinstance(user, str):
        warnings.warn(f"the user_dict in {str(path)!r} is pickled, and was left out", stacklevel=5)
    rank, name_of_optimizer = options.get("world_rank"), options.get("optimizer_name")
    file = File(
        path,
        rank if isinstance(rank, int) else None,
        beside=beside or (dict(user) if isinstance(user, Mapping) else {}),
    )
    file.optimizer = str(name_of_optimizer) if name_of_optimizer else None
    file.shapes = {_own(name): _shape(cut, name, path) for name in cut}
    # In float32 every process has all weights; in mixed precision each has those that it updates.
    weights_cut = bool(options.get("mixed_precision"))
    precision = next((key for key in _PRECISIONS if key in model), _PRECISIONS[0])
    for name, value in _section(model, precision, path).items():
        entry = Entry(name, "", _own(name), weights_cut and name in cut, _tensor(value, name, path))
        file.entries.append(entry)
    for name in optimizer:
        for kind, value in _section(optimizer, name, path).items():
            key, known = f"optimizer.{name}.{kind}", kind in _MOMENTS
            tensor = _tensor(value, key, path, number=not known)
            file.entries.append(Entry(key, kind if known else COUNT, _own(name), known and name in cut, tensor))
    return file


def _own(name: str) -> str:
    """The name in the module itself, without that of the module that upstream wraps around model and loss."""
    return name.removeprefix("model_.")


def _section(state: Mapping[str, object], name: str, path: Path) -> Mapping[str, Any]:
    section = state.get(name, {})
    if not isinstance(section, Mapping):
        raise CheckpointError(
            f"{name!r} in {str(path)!r} is a {type(section).__name__}", reason="it should be a section"
        )
    return section


def _shape(cut: Mapping[str, object], name: str, path: Path) -> tuple[int, ...]:
    said = _section(cut, name, path).get("original_dim")
    try:
        return tuple(int(size) for size in np.asarray(said).reshape(-1))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{str(path)!r} gives no shape of {name!r}", reason=f"but {said!r}") from error


def _tensor(value: object, key: str, path: Path, *, number: bool = False) -> torch.Tensor:
    if not isinstance(value, torch.Tensor | np.ndarray) and not (number and type(value) is int):
        raise CheckpointError(f"{key!r} in {str(path)!r} is a {type(value).__name__}, and no tensor")
    tensor = tensor_of(value)
    if tensor.numel() * tensor.element_size() > max(path.stat().st_size, 1):
        raise CheckpointError(
            f"{key!r} in {str(path)!r} has the shape {list(tensor.shape)}", reason="the file is smaller than that"
        )
    return tensor


def _arrays() -> list[Any]:
    """What torch.load may call beside its own: upstream's later state_dict holds numpy's arrays."""
    # Arrays name the function that makes an empty one; numpy has moved it.
    makes_array = np.zeros(1).__reduce__()[0]
    places = [f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core")]
    dtypes = {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"}
    return [*((makes_array, place) for place in places), np.ndarray, np.dtype, *dtypes]


def _reason(error: Exception) -> str:
    """What torch says of a file, without its advice to load it all the same."""
    called = re.search(r"GLOBAL (\S+)", str(error))
    if called:
        return f"it wants to call {called[1]}"
    said = str(error).partition("WeightsUnpickler error:")[2] or str(error)
    return said.strip().partition("\n")[0] or repr(error)


# What torch's unpickler and numpy raise for bytes that were altered: they check little of what they read.
_DAMAGE = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError, NotImplementedError, OSError,
    RuntimeError, TypeError, ValueError, struct.error, zipfile.BadZipFile,
)  # fmt: skip


def _check_archive(path: Path) -> None:
    """Refuse an archive whose members are larger than it is: torch.save compresses nothing."""
    with open_file(path) as file:
        if not zipfile.is_zipfile(file):
            return
        size = os.fstat(file.fileno()).st_size
        with zipfile.ZipFile(file) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > size:
                raise ValueError("its members are said to be larger than the file")


def _content(path: Path) -> Mapping[str, Any]:
    # Torch raises pickle's error; the module itself is not for us to import.
    refused = torch.serialization.pickle.UnpicklingError  # type: ignore[attr-defined]
    try:
        if is_hdf5(path):
            content: Any = read_hdf5(path)
        else:
            _check_archive(path)
            with open_file(path) as file, torch.serialization.safe_globals(_arrays()):
                content = torch.load(file, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except (refused, *_DAMAGE) as error:
        raise CheckpointError(
            f"cannot read {str(path)!r}",
            reason=_reason(error),
            way_out="only tensors and plain values are read from such a file; write it anew from what you trust",
        ) from error
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{str(path)!r} holds a {type(content).__name__}", way_out="give a checkpoint's file")
    return content
