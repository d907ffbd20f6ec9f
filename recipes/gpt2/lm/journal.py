"""metrics.jsonl and TensorBoard's events: a row an interval of training, and a row an evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["Journal"]


class Journal:
    """Appends rows; a run that goes on at `upto_step` drops what an earlier one wrote behind that.

    Args:
        folder: of the run.
        upto_step: updates that are done.
        writes: whether this process is the one that writes.
    """

    def __init__(self, folder: Path, upto_step: int, writes: bool = True) -> None:
        self._path, self._writes = folder / "metrics.jsonl", writes
        self._events: Any = None
        if not writes:
            return
        kept = [row for row in self.rows() if row["step"] <= upto_step]
        self._path.write_text("".join(json.dumps(row) + "\n" for row in kept))
        self._file = self._path.open("a", buffering=1)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            print("no TensorBoard events: pip install tensorboard")
        else:
            self._events = SummaryWriter(str(folder), purge_step=upto_step + 1 if kept else None)

    def rows(self) -> list[dict[str, Any]]:
        """Return what is written so far."""
        return [json.loads(line) for line in self._path.read_text().splitlines()] if self._path.exists() else []

    def add(self, step: int, split: str, **values: Any) -> None:
        """Write a row; its numbers are curves in TensorBoard, its texts are texts."""
        if not self._writes:
            return
        self._file.write(json.dumps({"step": step, "split": split, **values}) + "\n")
        for key, value in values.items() if self._events is not None else ():
            if isinstance(value, str):
                self._events.add_text(f"{key}/{split}", value, step)
            elif isinstance(value, int | float):
                self._events.add_scalar(f"{key}/{split}", value, step)

    def close(self) -> None:
        """Flush everything."""
        if self._writes:
            self._file.close()
            if self._events is not None:
                self._events.close()
