"""Kill a write of a checkpoint before each thing that it does to the file system, and look at what is left.

    python -m tests.checkpoint.crashes FOLDER KEEP …

prints how many moments there were for each number of checkpoints to keep. Each write is a process of its own, forked
here and killed by SIGKILL.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from ontrain.checkpoint import read_checkpoint, write_checkpoint

CHANGES = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
"""Python's audit events of calls that can change files; a rename and a replacement are one event."""


def write(folder: Path, number: int, keep: int) -> None:
    tensors = {"model": {"weight": torch.full((3, 4), float(number))}, "optimizer": {"m": torch.full((5,), -number)}}
    write_checkpoint(folder, tensors, {"number": number}, keep)


def number_in(folder: Path) -> int:
    """Which checkpoint is read; all of its parts must be of the same one."""
    tensors, meta = read_checkpoint(folder)
    number = int(meta["number"])
    assert torch.equal(tensors["model"]["weight"], torch.full((3, 4), float(number)))
    assert torch.equal(tensors["optimizer"]["m"], torch.full((5,), -number))
    return number


def write_and_die(folder: Path, number: int, keep: int, moment: int) -> bool:
    """Whether a process that writes was killed before its change number `moment`, rather than done."""
    child = os.fork()
    if child == 0:
        left = moment

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            if event in CHANGES and (event != "open" or str(folder.parent) in str(arguments[0])):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        write(folder, number, keep)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def main(root: Path, keep: int) -> int:
    warnings.simplefilter("error")  # a checkpoint that is there must be whole
    wanted = ["ck", *(f"ck~{age}" for age in range(1, keep))]
    moment = 0
    while True:
        place = root / str(moment)
        place.mkdir()
        folder = place / "ck"
        for number in range(1, keep + 2):
            write(folder, number, keep)
        died = write_and_die(folder, keep + 2, keep, moment)
        left = number_in(folder)
        assert left in (keep + 1, keep + 2) if died else left == keep + 2
        # Whatever was left, the next write is whole, and clears up.
        write(folder, keep + 3, keep)
        assert sorted(path.name for path in place.iterdir()) == wanted
        numbers = [number_in(place / name) for name in wanted]
        assert numbers == sorted(numbers, reverse=True) and numbers[0] == keep + 3
        assert len(set(numbers)) == keep
        shutil.rmtree(place)
        if not died:
            return moment
        moment += 1


if __name__ == "__main__":
    counts = [main(Path(sys.argv[1]), int(keep)) for keep in sys.argv[2:]]
    print(*counts)
