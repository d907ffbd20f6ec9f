"""What a run says: JSON lines with the keys of upstream's DLLogger, events for TensorBoard, lines in the terminal.

A line is {"timestamp", "datetime", "elapsedtime", "type": "LOG", "step": [epoch, step] or "PARAMETER" or [], "data"}.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from pretraining.options import Options

__all__ = ["Journal", "read_rows"]


class Journal:
    """Writes the log of one process; all but the first are silent.

    Args:
        options: of the run.
        step: where it begins; later rows of the same phase, left by a run that died after its last checkpoint, are
            dropped.
        rank: of this process.
    """

    def __init__(self, options: Options, step: int, rank: int) -> None:
        self.console = Console(soft_wrap=True, markup=False, highlight=False, quiet=rank > 0)
        self._began, self._offset, self._phase = time.perf_counter(), options.offset, 2 if options.phase2 else 1
        self._file: Any = None
        self._events: Any = None
        if rank:
            return
        path = options.log_file
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [row for row in read_rows(path) if not self._is_later(row, step)]
        path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8", buffering=1)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self.say("no events for TensorBoard: pip install tensorboard")
        else:
            self._events = SummaryWriter(str(options.output_dir), purge_step=self._offset + step + 1)

    def parameters(self, **values: Any) -> None:
        """Write a row for each value that holds for the whole run."""
        for name, value in values.items():
            self._write("PARAMETER", {name: value})

    def step(self, epoch: int, step: int, data: Mapping[str, Any]) -> None:
        """Write a row of a step, and its numbers as curves."""
        self._write([epoch, step], {"phase": self._phase, **data})
        if self._events is not None:
            for name, value in data.items():
                if isinstance(value, int | float):
                    self._events.add_scalar(name, value, self._offset + step)

    def end(self, data: Mapping[str, Any]) -> None:
        """Write the last row."""
        self._write([], {"phase": self._phase, **data})

    def say(self, text: str) -> None:
        """Print a line in the first process's terminal."""
        self.console.print(text)

    def close(self) -> None:
        """Finish the files."""
        if self._file is not None:
            self._file.close()
        if self._events is not None:
            self._events.close()

    def _is_later(self, row: Mapping[str, Any], step: int) -> bool:
        at = row.get("step")
        phase = row.get("data", {}).get("phase", 0)
        return isinstance(at, list) and (
            (len(at) == 2 and phase == self._phase and at[1] > step) or phase > self._phase
        )

    def _write(self, step: Any, data: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        now = datetime.now()
        row = {
            "timestamp": str(now.timestamp()), "datetime": str(now),
            "elapsedtime": str(time.perf_counter() - self._began), "type": "LOG", "step": step, "data": dict(data),
        }  # fmt: skip
        self._file.write(json.dumps(row) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a log; a line torn by a kill or a full disk is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
