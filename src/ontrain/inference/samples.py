"""Feeds for a model that is timed or looked at: random numbers of the types that it states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.errors import InputError, OptionError, nearest
from ontrain.session.memory_limit import memory_limit
from ontrain.units import byte_text

__all__ = ["read_feeds", "sample_feeds"]


def sample_feeds(inputs: Sequence[Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return random feeds, the same ones each time: floats around zero, whole numbers 0 and 1, booleans that are true.

    Args:
        inputs: as a session describes them.
        sizes: of dimensions by name; those that are left out are 1.

    Raises:
        InputError: an input is no tensor of numbers, or larger than the machine's memory.
        OptionError: no input has a dimension of the name.
    """
    named = sorted({dim for value in inputs for dim in value.shape if isinstance(dim, str)})
    for name in sizes:
        if name not in named:
            raise OptionError(f"no input has a dimension {name!r}", way_out=f"nearest: {nearest(name, named)}")
    rng = np.random.default_rng(0)
    return {value.name: _sample(value, sizes, rng) for value in inputs}


def read_feeds(path: str) -> dict[str, Any]:
    """Return the feeds of an .npz file, by input name.

    Raises:
        InputError: there is no such file, or it is none of numpy's.
    """
    if not Path(path).is_file():
        raise InputError(f"there is no file {path!r}")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # numpy's code and zipfile's: each damage has an error of its own
        raise InputError(f"{path!r} is no .npz file of arrays", reason=str(error)) from error


def _sample(value: Any, sizes: Mapping[str, int], rng: np.random.Generator) -> Any:
    element = value.type.removeprefix("tensor(").removesuffix(")")
    dtype = ir.DataType.__members__.get(element.upper())
    if not value.type.startswith("tensor(") or dtype is None or dtype == ir.DataType.STRING:
        raise InputError(
            f"input {value.name!r} is {value.type}", reason="random numbers are made for tensors of numbers only",
            way_out="give feeds of your own",
        )  # fmt: skip
    shape = [dim if isinstance(dim, int) else sizes.get(dim, 1) for dim in value.shape]
    needed = 8 * math.prod(shape)
    if needed > memory_limit():
        raise InputError(
            f"random numbers for input {value.name!r} of shape {shape} need {byte_text(needed)}, there are "
            f"{byte_text(memory_limit())}",
            way_out="give its dimensions smaller sizes",
        )
    if dtype == ir.DataType.BOOL:
        return np.ones(shape, np.bool_)
    numbers = rng.standard_normal(shape, np.float32) if dtype.is_floating_point() else rng.integers(0, 2, shape)
    return numbers.astype(dtype.numpy())
