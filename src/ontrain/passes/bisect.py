"""Which pass made a number wrong, and at which node: a binary search over passes, then over the rewrites of one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ontrain.errors import OptionError

__all__ = ["NothingWrongError", "Finding", "bisect"]


class NothingWrongError(OptionError):
    """The check passes with all passes on: there is nothing to find."""


@dataclass(frozen=True)
class Finding:
    """Where a number goes wrong.

    Attributes:
        number: of the pass, as `ONTRAIN_PASS_LIMIT` counts; 0 if the number is wrong without any pass.
        name: of the pass; None without any.
        stage: "forward" or "step".
        rewrite: which of the pass's rewrites it is, from 1; 0 for a pass that is no `RewritePass`.
        node: the node that this one rewrites, with shapes.
        source: the line of the user's model that made the node.
        tries: how often the check ran.
    """

    number: int
    name: str | None = None
    stage: str | None = None
    rewrite: int = 0
    node: str | None = None
    source: str | None = None
    tries: int = 0

    def __str__(self) -> str:
        if self.name is None:
            return "wrong without any pass: look at the captured graph, a gradient rule or the provider"
        lines = [f"pass {self.number}: {self.name} ({self.stage})"]
        lines += [f"  rewrite {self.rewrite}: {self.node}"] if self.node else []
        lines += [f"  source: {self.source}"] if self.source else []
        return "\n".join(lines)


def bisect(check: Callable[[], bool]) -> Finding:
    """Find the first pass, and its first rewrite, with which `check` returns False.

    Args:
        check: builds a trainer or session anew, so that it makes its plans anew, and returns whether the number is
            right. It may start other processes: the search speaks to them by `ONTRAIN_PASS_LIMIT` and `ONTRAIN_DUMP`,
            which are as before when it returns.

    Raises:
        NothingWrongError: the check passes with all passes on.
        OptionError: the check makes no plan, or returns something else than True or False.
    """
    search = _Search(check)
    right, passes = search.run(None)
    if right:
        raise NothingWrongError(
            "the check passes with all passes on", way_out="give one that returns False while the number is wrong"
        )
    if not passes:
        raise OptionError(
            "the check ran no pass", way_out="let it build a new trainer or session and make a step, each time"
        )
    if not search.run("0")[0]:
        return Finding(0, tries=search.tries)
    number = search.first_wrong(max(entry["number"] for entry in passes), "{}")
    step = search.pass_at(str(number), number)
    if not step["rewrites"]:
        return Finding(number, step["name"], step["stage"], tries=search.tries)
    rewrite = search.first_wrong(step["rewrites"], f"{number}:{{}}")
    step = search.pass_at(f"{number}:{rewrite}", number)
    return Finding(number, step["name"], step["stage"], rewrite, step["last_node"], step["last_source"], search.tries)


class _Search:
    def __init__(self, check: Callable[[], bool]) -> None:
        self.check, self.tries = check, 0
        self._ran: dict[str, tuple[bool, list[dict[str, Any]]]] = {}

    def run(self, limit: str | None) -> tuple[bool, list[dict[str, Any]]]:
        """Whether the check passes under a limit, and the passes that ran in all of its plans."""
        key = limit or ""
        if key not in self._ran:
            with tempfile.TemporaryDirectory(prefix="ontrain-bisect-") as folder:
                with _environment(ONTRAIN_PASS_LIMIT=limit, ONTRAIN_DUMP=folder):
                    right = self.check()
                if not isinstance(right, bool | np.bool_):
                    raise OptionError(
                        f"the check returned a {type(right).__name__}",
                        way_out="return True while the number is right, False where it is wrong",
                    )
                journals = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*/passes.json"))]
            self.tries += 1
            self._ran[key] = bool(right), [entry for journal in journals for entry in journal["passes"]]
        return self._ran[key]

    def first_wrong(self, most: int, limit: str) -> int:
        """The smallest count at which the check fails, knowing that it passes at 0 and fails at `most`."""
        good, bad = 0, most
        while bad - good > 1:
            middle = (good + bad) // 2
            if self.run(limit.format(middle))[0]:
                good = middle
            else:
                bad = middle
        return bad

    def pass_at(self, limit: str, number: int) -> dict[str, Any]:
        """The report of a pass, of the plan in which it rewrote most."""
        return max(
            (entry for entry in self.run(limit)[1] if entry["number"] == number), key=lambda entry: entry["rewrites"]
        )


@contextmanager
def _environment(**wanted: str | None) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    _set(wanted)
    try:
        yield
    finally:
        _set(before)


def _set(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
