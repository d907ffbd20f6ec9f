"""What a run did, as JSON lines and as TensorBoard's curves; a run that goes on drops the rows it will write again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.files import DataError, read_text, refuse_special

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a log; a line torn by a kill or a full disk is left out."""
    rows = []
    for line in read_text(path).splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


class Journal:
    """A log to which rows are added; a process that does not `write` is silent.

    Args:
        path: of the JSON lines.
        stays: of the rows of an earlier run, those before the place where this one begins.
        events: folder of TensorBoard's events, None for none.
        purge_step: TensorBoard forgets the curves from here on.
        writes: whether this process is the one that writes.
    """

    def __init__(
        self, path: Path, stays: Callable[[Row], bool], *, events: Path | None = None, purge_step: int | None = None,
        writes: bool = True,
    ) -> None:  # fmt: skip
        self.path, self._file, self._events = path, None, None
        if not writes:
            return
        refuse_special(path)
        earlier = [row for row in read_rows(path) if stays(row)]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in earlier), encoding="utf-8")
            self._file: Any = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise DataError(f"{path} cannot be written: {error.strerror}") from None
        if events is None:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            print("no events for TensorBoard: pip install tensorboard")
        else:
            self._events: Any = SummaryWriter(str(events), purge_step=purge_step)

    def rows(self) -> list[Row]:
        """Return what is written so far."""
        return read_rows(self.path)

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a row."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise DataError(
                f"{self.path} cannot be written ({error.strerror}); the checkpoints before stay: make room and give "
                "the same command again"
            ) from None

    def curves(self, step: int, values: Mapping[str, Any], split: str = "") -> None:
        """Show numbers as curves, and texts as texts, in TensorBoard."""
        for key, value in values.items() if self._events is not None else ():
            tag = f"{key}/{split}" if split else key
            if isinstance(value, str):
                self._events.add_text(tag, value, step)
            elif isinstance(value, int | float):
                self._events.add_scalar(tag, value, step)

    def close(self) -> None:
        """Finish the files."""
        for file in (self._file, self._events):
            if file is not None:
                file.close()
