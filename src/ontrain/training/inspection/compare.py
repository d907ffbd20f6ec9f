"""Two runs' statistics side by side: the first step and value that differ, in the order of execution."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ontrain.errors import InputError
from ontrain.places import steps_of_run
from ontrain.training.inspection.folder import read_order, read_statistics
from ontrain.training.inspection.statistics import Statistics

__all__ = ["Comparison", "Difference", "compare_runs"]

TOLERANCES = {"torch.float64": 1e-7, "torch.float16": 1e-2, "torch.bfloat16": 5e-2}
"""By dtype, as a share of a tensor's largest element; 1e-4 for all others."""
_OTHERS = 1e-4


@dataclass(frozen=True)
class Difference:
    """A value that differs between two runs.

    Attributes:
        step: number of the step.
        name: of the file: the value, and "_forward" or "_backward".
        what: of its statistics: "min", "mean", "samples", "shape"; "missing" where a run does not have it.
        first, second: what the runs say.
        distance: how far they are apart, as a share of the first's largest element; None where that says nothing.
    """

    step: int
    name: str
    what: str
    first: Any
    second: Any
    distance: float | None = None

    def __str__(self) -> str:
        apart = "" if self.distance is None else f" (apart by {self.distance:.2g} of the largest element)"
        return f"step {self.step}: {self.name}: {self.what} is {_short(self.first)} and {_short(self.second)}{apart}"


@dataclass(frozen=True)
class Comparison:
    """What two runs have in common.

    Attributes:
        first: the folder of the first run.
        second: the folder of the second run.
        steps: steps that both runs have.
        only_first: steps that only the first run has.
        only_second: steps that only the second run has.
        values: how many values were compared.
        differences: an entry for each value that differs, in the order of execution. Look at the first entry first.
    """

    first: str
    second: str
    steps: list[int]
    only_first: list[int]
    only_second: list[int]
    values: int
    differences: list[Difference]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values; NaN and infinity as text."""
        return {
            "schema": 1, "first": self.first, "second": self.second, "steps": self.steps,
            "only_first": self.only_first, "only_second": self.only_second, "values": self.values,
            "differences": [{key: _plain(value) for key, value in vars(entry).items()} for entry in self.differences],
        }  # fmt: skip


def compare_runs(
    first: str | os.PathLike[str], second: str | os.PathLike[str], *, rtol: float | None = None, atol: float = 0.0
) -> Comparison:
    """Compare what two `StatisticsSubscriber`s wrote.

    Shapes, and how many elements are NaN or infinite, must be equal. Minimum, maximum, mean, standard deviation and the
    first elements may be apart by `atol + rtol · largest element`: rounding grows with the numbers that were added up,
    not with the result. How many elements are negative, zero or positive is not compared, for rounding turns signs.

    Args:
        first: folder of the run that is taken for right; the order of execution is its.
        second: folder of the other run.
        rtol: None for 1e-7 in float64, 1e-2 in float16, 5e-2 in bfloat16, 1e-4 else.
        atol: difference that is always allowed.

    Raises:
        InputError: a folder holds no run, a file is torn, or the runs have no step in common.
    """
    runs = [steps_of_run(folder) for folder in (first, second)]
    common = sorted(runs[0].keys() & runs[1].keys())
    if not common:
        raise InputError(
            f"{first} and {second} have no step in common",
            reason=f"steps {_span(runs[0])} and {_span(runs[1])}", way_out="give both runs the same start_step",
        )  # fmt: skip
    differences, values = [], 0
    for step in common:
        for name, left, other in _pairs(runs[0][step], runs[1][step]):
            values += 1
            if left is None or other is None:
                here, there = ("present" if value is not None else "missing" for value in (left, other))
                differences.append(Difference(step, name, "missing", here, there))
                continue
            limit = rtol if rtol is not None else max(TOLERANCES.get(s.dtype, _OTHERS) for s in (left, other))
            difference = _differs(left, other, limit, atol)
            if difference is not None:
                differences.append(Difference(step, name, *difference))
    alone = [sorted(run.keys() - set(common)) for run in runs]
    return Comparison(str(first), str(second), common, alone[0], alone[1], values, differences)


def _pairs(first: Path, second: Path) -> Iterator[tuple[str, Statistics | None, Statistics | None]]:
    """All values of a step, in the first run's order, the second's own at the end."""
    orders = [read_order(folder) for folder in (first, second)]
    for name in dict.fromkeys([*orders[0], *orders[1]]):
        yield name, _read(first, name, orders[0]), _read(second, name, orders[1])


def _read(folder: Path, name: str, order: Collection[str]) -> Statistics | None:
    if name not in order:
        return None
    return Statistics.parse(read_statistics(folder, name), str(folder / name))


def _differs(
    left: Statistics, other: Statistics, rtol: float, atol: float
) -> tuple[str, Any, Any, float | None] | None:
    """The first of the statistics that differs, what both say, and how far they are apart."""
    for what in ("shape", "nan", "inf"):
        values = getattr(left, what), getattr(other, what)
        if values[0] != values[1]:
            return what, *values, None
    ends = [abs(value) for value in (left.minimum, left.maximum) if math.isfinite(value)]
    largest = max(ends, default=0.0)
    pairs = [(what, getattr(left, name), getattr(other, name)) for what, name in _COMPARED.items()]
    pairs += [(f"sample {i}", *both) for i, both in enumerate(zip(left.samples, other.samples, strict=False))]
    for what, a, b in pairs:
        if a == b or (math.isnan(a) and math.isnan(b)):
            continue
        apart = abs(a - b)
        if not apart <= atol + rtol * largest:
            return what, a, b, apart / largest if largest and math.isfinite(apart) else None
    return None


_COMPARED = {"min": "minimum", "max": "maximum", "mean": "mean", "std": "std"}


def _span(run: dict[int, Path]) -> str:
    return f"{min(run)} to {max(run)}"


def _short(value: object) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _plain(value: object) -> Any:
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)
