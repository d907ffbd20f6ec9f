"""The checkpoint of on-device training as a file: safetensors, which any language reads in a dozen lines.

Tensors are parameters (running statistics among them) and optimizer moments under their names in the graphs. The
header's metadata says the rest as JSON: which parameters are trained, the update count and learning rate, and the
user's properties. A nominal checkpoint has the same header and no tensors. A CRC-32 of both tells a damaged file.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ontrain.arguments import checked_path
from ontrain.disk import open_file, sync
from ontrain.errors import CheckpointError, OptionError

__all__ = ["Content", "Property", "read", "write"]

Array = np.ndarray[Any, Any]
Property = int | float | str

_FORMAT = "ontrain.checkpoint/2"
_WITHOUT_CHECKSUM = "ontrain.checkpoint/1"
_BLOCK = 1 << 20


@dataclass
class Content:
    """What a checkpoint holds.

    Attributes:
        parameters: values by name, in the graphs' order: trained ones, frozen ones, running statistics.
        trained: names of those that require a gradient.
        moments: the optimizer's state by name.
        updates: how many updates the optimizer made.
        learning_rate: as it was, None if no optimizer was there.
        properties: the user's.
        nominal: whether the values are not there, only shapes and dtypes (the arrays are zeros).
    """

    parameters: dict[str, Array]
    trained: list[str]
    moments: dict[str, Array] = field(default_factory=dict)
    updates: int = 0
    learning_rate: float | None = None
    properties: dict[str, Property] = field(default_factory=dict)
    nominal: bool = False


def write(path: str | os.PathLike[str], content: Content) -> None:
    """Write a checkpoint beside its place, on to the disk, and rename it there: all or nothing.

    Raises:
        OptionError: the folder does not exist or cannot be written.
    """
    path = checked_path("the path of the checkpoint", path)
    groups = {"parameters": content.parameters, "moments": content.moments}
    header: dict[str, Any] = {
        name: {key: [array.dtype.name, list(array.shape)] for key, array in group.items()}
        for name, group in groups.items()
    }
    header["trained"] = content.trained
    header["optimizer"] = {"updates": content.updates, "learning_rate": content.learning_rate}
    header["properties"], header["nominal"] = content.properties, content.nominal
    tensors = (
        {} if content.nominal else {key: np.asarray(a, order="C") for g in groups.values() for key, a in g.items()}
    )
    state = json.dumps(header)
    encoded = memoryview(save(tensors, {"format": _FORMAT, "checksum": "?" * 8, "state": state}))
    start = _data_start(encoded)
    checksum = _hexadecimal(zlib.crc32(encoded[start:], zlib.crc32(state.encode())))
    head = bytes(encoded[:start]).replace(b'"checksum":"????????"', f'"checksum":"{checksum}"'.encode())
    target = Path(path)
    beside = target.with_name(f".{target.name}.partial")
    try:
        with open(beside, "wb") as file:
            file.write(head)
            file.write(encoded[start:])
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
        sync(target.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise OptionError(
            f"cannot write {os.fspath(path)!r}", reason=str(error), way_out="create the folder, or choose another path"
        ) from error


def _hexadecimal(checksum: int) -> str:
    return f"{checksum:08x}"


def _data_start(head: bytes | memoryview) -> int:
    """Where the numbers begin, behind a header whose length the first 8 bytes hold."""
    return 8 + int.from_bytes(head[:8], "little")


def _checksum(path: str | os.PathLike[str], state: str) -> str:
    """The CRC-32 of the state's JSON and of all numbers in the file, as 8 hexadecimal digits."""
    checksum = zlib.crc32(state.encode())
    with open_file(path) as file:
        file.seek(_data_start(file.read(8)))
        while block := file.read(_BLOCK):
            checksum = zlib.crc32(block, checksum)
    return _hexadecimal(checksum)


def read(path: str | os.PathLike[str]) -> Content:
    """Read a checkpoint.

    Raises:
        CheckpointError: there is no such file, it is damaged, or no checkpoint of on-device training.
    """
    name = checked_path("the path of the checkpoint", path)
    metadata, tensors = _checked(name)
    try:
        header = json.loads(metadata["state"])
        nominal = bool(header["nominal"])
        parameters, moments = (_group(header[key], tensors, nominal) for key in ("parameters", "moments"))
        trained = [str(name) for name in header["trained"] if name in parameters]
        rate, properties = header["optimizer"]["learning_rate"], _properties(header["properties"])
        updates = int(header["optimizer"]["updates"])
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, MemoryError, RecursionError) as error:
        raise CheckpointError(f"the header of {name!r} is damaged", reason=repr(error)) from error
    return Content(parameters, trained, moments, updates, rate, properties, nominal)


def _checked(name: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The metadata and the tensors of a file that holds a whole checkpoint."""
    if not Path(name).is_file():
        raise CheckpointError(f"there is no checkpoint {name!r}", way_out="generate_artifacts writes one")
    try:
        with safe_open(name, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError, MemoryError, ValueError, AttributeError, TypeError) as error:  # numpy's limits
        raise CheckpointError(
            f"{name!r} is no checkpoint, or is damaged", reason=str(error), way_out="copy the whole file"
        ) from error
    if metadata.get("format") not in (_FORMAT, _WITHOUT_CHECKSUM):
        raise CheckpointError(
            f"{name!r} is no checkpoint of on-device training",
            reason=f"its format is {metadata.get('format')!r}, not {_FORMAT!r}",
            way_out="give the file that generate_artifacts or CheckpointState.save_checkpoint wrote",
        )
    told = metadata.get("checksum")
    try:
        wrong = (told or metadata["format"] == _FORMAT) and told != _checksum(name, metadata.get("state", ""))
    except OSError as error:
        raise CheckpointError(f"{name!r} cannot be read", reason=str(error)) from error
    if wrong:
        raise CheckpointError(
            f"{name!r} is damaged",
            reason="its checksum is not that of what it holds",
            way_out="copy the whole file anew",
        )
    return metadata, tensors


def _group(listed: Mapping[str, Any], tensors: Mapping[str, Array], nominal: bool) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for name, (dtype, shape) in listed.items():
        if nominal:
            arrays[name] = np.zeros([int(d) for d in shape], np.dtype(str(dtype)))
            continue
        arrays[name] = tensors[name]
        if arrays[name].dtype.name != dtype or list(arrays[name].shape) != shape:
            raise ValueError(f"{name} is {arrays[name].dtype.name} {list(arrays[name].shape)}, not {dtype} {shape}")
    return arrays


def _properties(properties: Mapping[str, Any]) -> dict[str, Property]:
    for name, value in properties.items():
        if not isinstance(value, int | float | str):
            raise TypeError(f"property {name} is a {type(value).__name__}")
    return dict(properties)
