"""Which formulation of a matrix product is the fastest on this machine: measured once, and kept in a small file."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["FORMULATIONS", "Tuning", "open_tuning", "tuning_file"]

_logger = logging.getLogger("ontrain.providers.torch.tuning")
_ROUNDS = 3
_GAIN = 0.97
"""Another formulation is taken if it needs at most this share of ATen's time: a smaller gain is noise."""
_WORTH = 1 << 22
"""Floating-point operations from which on a product is measured: below it is a matter of the call."""

Sizes = tuple[int, int, int]
"""Rows, inner, columns of x [rows, inner] · w [inner, columns]."""


def onednn(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return x [R, K] · w [K, C] + bias [C] by oneDNN's kernel for linear layers, in memory of its own."""
    made: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, w.t(), bias, "none", [], "")
    return made


FORMULATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]] = (
    {"onednn": onednn} if hasattr(torch.ops.mkldnn, "_linear_pointwise") else {}
)
"""Formulations beside ATen's own, which is called "aten" in the file; a build of torch may lack the library."""


class Tuning:
    """Seconds that products took, by machine, and the choice that follows from them.

    Args:
        file: JSON, {machine: {product: {formulation: seconds}}}. One that is torn, of another form or unreadable is as
            if it were not there; one that cannot be written is not: a cache is no reason for a run to end.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.machine = file, _machine()
        self._known: dict[str, dict[str, float]] = read_timings(file).get(self.machine, {})

    def fastest(self, sizes: Sizes, by_column: bool, bias: bool) -> str:
        """Return the name of the formulation to take for a product in single precision.

        Args:
            sizes: of the product.
            by_column: whether w's columns lie one after the other, as for a linear layer's weight.
            bias: whether there is one.
        """
        if 2 * math.prod(sizes) < _WORTH:
            return "aten"
        name = f"{'x'.join(map(str, sizes))} {'NT' if by_column else 'NN'}{' + bias' if bias else ''}"
        if name not in self._known:
            self._known[name] = _measure(sizes, by_column, bias)
            self._write()
        return choice(self._known[name])

    def _write(self) -> None:
        """Add what is known to the file as it is now: other processes write, too."""
        found = read_timings(self.file)
        found[self.machine] = {**found.get(self.machine, {}), **self._known}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            handle, half = tempfile.mkstemp(dir=self.file.parent)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as out:
                    json.dump(found, out, indent=1, sort_keys=True)
                os.replace(half, self.file)
            except BaseException:
                Path(half).unlink(missing_ok=True)
                raise
        except OSError as error:
            _logger.debug("nothing can be written to %s: %s", self.file, error)


def choice(seconds: Mapping[str, float]) -> str:
    """Return the name of the formulation that these times speak for."""
    best = min(seconds, key=lambda name: seconds[name])
    return best if seconds[best] <= _GAIN * seconds["aten"] else "aten"


def tuning_file() -> Path:
    """Return where the times are kept: in ONTRAIN_CACHE_DIR, else in the user's own cache folder."""
    named = os.environ.get("ONTRAIN_CACHE_DIR")
    if named:
        return Path(named) / "products.json"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ontrain" / "products.json"


def open_tuning() -> Tuning:
    """Return the choices that the user's cache holds, and that are added to it."""
    return Tuning(tuning_file())


def read_timings(file: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Return what is sound in a file of times, {machine: {product: {formulation: seconds}}}."""
    found: Any = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(file.read_text(encoding="utf-8"))
    return {
        machine: {name: times for name, times in products.items() if _is_sound(times)}
        for machine, products in (found.items() if isinstance(found, dict) else ())
        if isinstance(products, dict)
    }


def _is_sound(times: Any) -> bool:
    known = {"aten", *FORMULATIONS}
    return isinstance(times, dict) and set(times) == known and all(
        isinstance(one, float) and 0 < one < float("inf") for one in times.values()
    )  # fmt: skip


def _measure(sizes: Sizes, by_column: bool, bias: bool) -> dict[str, float]:
    """The least seconds of each formulation; they take turns."""
    rows, inner, columns = sizes
    x, out = torch.ones(rows, inner), torch.empty(rows, columns)
    w = torch.ones(columns, inner).t() if by_column else torch.ones(inner, columns)
    b = torch.ones(columns) if bias else None

    def aten() -> None:
        torch.mm(x, w, out=out) if b is None else torch.addmm(b, x, w, out=out)

    def other(fn: Callable[..., torch.Tensor]) -> None:
        out.copy_(fn(x, w, b))

    ways: dict[str, Callable[[], None]] = {
        "aten": aten,
        **{name: functools.partial(other, fn) for name, fn in FORMULATIONS.items()},
    }
    best = dict.fromkeys(ways, float("inf"))
    with torch.no_grad():
        for _ in range(_ROUNDS):  # the first one makes kernels and touches memory
            for name, run in ways.items():
                start = time.perf_counter()
                run()
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def _machine() -> str:
    """What the times depend on: processor, threads, and the libraries that torch brings."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return f"{model}, {torch.get_num_threads()} threads, torch {torch.__version__}"
