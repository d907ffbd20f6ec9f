"""The file of times that products took on this machine, and of the formulation that is taken for each."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from ontrain.disk import read_file
from ontrain.providers.torch import processor

__all__ = [
    "ATEN",
    "Entry",
    "Timings",
    "as_json",
    "choice",
    "machine",
    "read_timings",
    "sizes_of",
    "tuning_file",
    "update_timings",
]

ATEN = "aten"
"""The formulation of eager PyTorch."""
_ABOUT = 1.05
"""How many times the fastest's time a formulation may take that is preferred: ATen's rounds as eager PyTorch does."""
_RETURNS = "linear"
"""The formulation whose result lies in memory that its kernel takes; others write to planned memory."""
_PLANNED, _LARGE = 1.25, 4 << 20
"""How many times its time another may take for results of so many bytes: where kernels return as large ones, the C
library's heap grows by the gaps between them."""
_MOST = 64 << 20
"""Bytes of the file: a product takes some hundred."""
_PATIENCE = 10.0
"""Seconds to wait for another process that writes the file."""
_NAME = re.compile(r"\d+x\d+x\d+( |$)")
"""How the name of a product begins."""


@dataclass(frozen=True)
class Entry:
    """What is known about a product.

    Attributes:
        taken: the formulation that plans take.
        seconds: by formulation; empty where the product could not be measured yet.
    """

    taken: str
    seconds: Mapping[str, float] = field(default_factory=dict)


Timings = dict[str, dict[str, Entry]]
"""By machine and product."""


def choice(product: str, seconds: Mapping[str, float]) -> str:
    """Return the name of the formulation that these times speak for: the first preferred that is about the fastest."""
    rows, _, columns = sizes_of(product)
    copied = product.partition(" ")[2][2:3] == "w"  # to where the rows of a result lie far apart
    if 4 * rows * columns > _LARGE and not copied:
        planned = {name: taken for name, taken in seconds.items() if name != _RETURNS}
        if min(planned.values(), default=math.inf) <= _PLANNED * min(seconds.values()):
            seconds = planned
    best = min(seconds.values())
    return next(name for name, taken in seconds.items() if taken <= _ABOUT * best)


def sizes_of(product: str) -> tuple[int, int, int]:
    """Return rows, inner size and columns of a product by its name."""
    rows, inner, columns = map(int, product.split()[0].split("x"))
    return rows, inner, columns


def tuning_file() -> Path:
    """Return where the times are kept: in ONTRAIN_CACHE_DIR, else in the user's own cache folder."""
    named = os.environ.get("ONTRAIN_CACHE_DIR")
    if named:
        return Path(named) / "products.json"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ontrain" / "products.json"


def read_timings(file: Path) -> Timings:
    """Return what is sound in a file of times, {machine: {product: {"taken": name, "seconds": {name: seconds}}}}."""
    content: Any = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        content = json.loads(read_file(file, _MOST))
    return {
        name: {
            product: entry for product, known in products.items()
            if _NAME.match(product) and (entry := _entry(known)) is not None
        }
        for name, products in (content.items() if isinstance(content, dict) else ())
        if isinstance(products, dict)
    }  # fmt: skip


def update_timings(file: Path, change: Callable[[Timings], None]) -> None:
    """Change the file as it is now; of processes that do so at the same time, one after the other.

    Raises:
        OSError, filelock.Timeout: it cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{file}.lock", timeout=_PATIENCE):
        timings = read_timings(file)
        change(timings)
        handle, half = tempfile.mkstemp(dir=file.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                json.dump(as_json(timings), out, indent=1)
            os.replace(half, file)
        except BaseException:
            Path(half).unlink(missing_ok=True)
            raise


def as_json(timings: Timings) -> dict[str, dict[str, Any]]:
    """Return what the file holds."""
    return {
        name: {product: {"taken": choice.taken, "seconds": dict(choice.seconds)} for product, choice in known.items()}
        for name, known in timings.items()
    }


def machine() -> str:
    """Return what times depend on: processor, threads, and the libraries that torch brings."""
    name = " ".join(filter(None, (processor.model_name(), processor.generation())))
    return f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def _entry(known: Any) -> Entry | None:
    """What is known about a product, if it is sound. Times alone are of a version that kept no choices."""
    if not isinstance(known, dict):
        return None
    taken, seconds = (known.get("taken"), known.get("seconds")) if "taken" in known else (None, known)
    if not isinstance(seconds, dict) or not all(
        isinstance(s, float) and 0 < s < float("inf") for s in seconds.values()
    ):
        return None
    if taken is None:
        return Entry("", seconds) if ATEN in seconds else None
    return Entry(taken, seconds) if isinstance(taken, str) and (not seconds or taken in seconds) else None
