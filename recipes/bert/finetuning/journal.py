"""The log of all updates, and how a run says that it was stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corpus.workspace import DataError

__all__ = ["Interrupted", "log", "losses_until"]

_LOG = "train_log.jsonl"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: the update was finished and a checkpoint written."""


def losses_until(output: Path, upto: int) -> list[float]:
    """Losses of the updates before; rows after the checkpoint, and a torn one, are taken out of the file."""
    path, kept = output / _LOG, list[str]()
    if path.is_file() and upto:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                break
            if row["step"] <= upto:
                kept.append(line)
    try:
        output.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from None
    return [json.loads(line)["loss"] for line in kept]


@contextmanager
def log(output: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What adds a row to the log."""
    path = output / _LOG
    with path.open("a", encoding="utf-8", buffering=1) as file:

        def add(row: dict[str, Any]) -> None:
            try:
                file.write(json.dumps(row) + "\n")
            except OSError as error:
                raise DataError(
                    f"{path} cannot be written ({error.strerror}); the checkpoints before stay: make room and give "
                    "the same command again"
                ) from None

        yield add
