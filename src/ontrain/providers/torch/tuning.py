"""Which formulation of a matrix product is the fastest on this machine: measured once, and kept in a small file."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

__all__ = ["ATEN", "Tuning", "choice", "open_tuning", "processor", "read_timings", "sizes_of", "tuning_file"]

_logger = logging.getLogger("ontrain.providers.torch.tuning")
ATEN = "aten"
"""The formulation of eager PyTorch."""
_ABOUT = 1.05
"""How many times the fastest's time a formulation may take that is preferred: ATen's rounds as eager PyTorch does."""
_PACKED, _PLANNED, _LARGE = "packed", 1.25, 4 << 20
"""The formulation that writes to planned memory, and its times for results of so many bytes: where kernels return as
large ones, the C library's heap grows by the gaps between them."""
_PATIENCE = 10.0
"""Seconds to wait for another process that writes the file."""

_NAME = re.compile(r"\d+x\d+x\d+( |$)")
"""How the name of a product begins."""

Timings = dict[str, dict[str, dict[str, float]]]
"""Seconds, by machine, product and formulation."""


class Tuning:
    """Seconds that products took, by machine, and the choice that follows from them.

    A choice is made once and holds: of processes that measure the same product at the same time the first to write
    decides for all, and a time that cannot be written decides nothing. So a run that is resumed rounds as before.

    Args:
        file: JSON, {machine: {product: {formulation: seconds}}}. One that is torn, of another form or unreadable is as
            if it were not there.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.machine = file, _machine()
        self._read = read_timings(file).get(self.machine, {})
        self._chosen: dict[str, str] = {}
        self._said = False

    def fastest(self, product: str, names: Iterable[str], measure: Callable[[], Mapping[str, float]]) -> str:
        """Return the name of the formulation to take for a product.

        Args:
            product: rows x inner size x columns, and what tells it from others: "1024x768x3072 NTN + bias".
            names: the formulations that there are, the preferred first. Times of others are as if there were none.
            measure: returns the seconds of each formulation; called if there are none yet.
        """
        if product not in self._chosen:
            times = self._read.get(product, {})
            self._chosen[product] = choice(
                product, times if set(times) == set(names) else self._settle(product, dict(measure()))
            )
        return self._chosen[product]

    def _settle(self, product: str, times: dict[str, float]) -> dict[str, float]:
        """Add times to the file as it is now, and return what it holds then."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.file}.lock", timeout=_PATIENCE):
                found = read_timings(self.file)
                mine = found.setdefault(self.machine, {})
                if set(mine.get(product, {})) != set(times):
                    mine[product] = times
                handle, half = tempfile.mkstemp(dir=self.file.parent)
                try:
                    with os.fdopen(handle, "w", encoding="utf-8") as out:
                        json.dump(found, out, indent=1)
                    os.replace(half, self.file)
                except BaseException:
                    Path(half).unlink(missing_ok=True)
                    raise
        except (OSError, Timeout) as error:
            if not self._said:
                _logger.warning(
                    "%s cannot be written (%s): matrix products stay eager PyTorch's, even where others are faster; "
                    "set ONTRAIN_CACHE_DIR to a folder that can be written, or ONTRAIN_TUNE=0", self.file, error,
                )  # fmt: skip
            self._said = True
            return {ATEN: times[ATEN]}
        return mine[product]


def choice(product: str, seconds: Mapping[str, float]) -> str:
    """Return the name of the formulation that these times speak for: the first preferred that is about the fastest."""
    rows, _, columns = sizes_of(product)
    large = 4 * rows * columns > _LARGE
    best = min(seconds.values())
    return next(
        name for name, taken in seconds.items()
        if taken <= (_PLANNED if large and name == _PACKED else _ABOUT) * best
    )  # fmt: skip


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


def open_tuning() -> Tuning:
    """Return the choices that the user's cache holds, and that are added to it."""
    return Tuning(tuning_file())


def read_timings(file: Path) -> Timings:
    """Return what is sound in a file of times, {machine: {product: {formulation: seconds}}}."""
    found: Any = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(file.read_text(encoding="utf-8"))
    return {
        machine: {name: times for name, times in products.items() if _NAME.match(name) and _is_sound(times)}
        for machine, products in (found.items() if isinstance(found, dict) else ())
        if isinstance(products, dict)
    }


def processor() -> str:
    """Return the processor's name, or what the system knows of it instead."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return model


def _is_sound(times: Any) -> bool:
    return isinstance(times, dict) and ATEN in times and all(
        isinstance(one, float) and 0 < one < float("inf") for one in times.values()
    )  # fmt: skip


def _machine() -> str:
    """What the times depend on: processor, threads, and the libraries that torch brings."""
    return f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
