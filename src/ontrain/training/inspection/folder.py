"""What a `StatisticsSubscriber` wrote for one step, read back: folders come from other machines, too."""

from __future__ import annotations

from pathlib import Path

from ontrain.disk import read_file
from ontrain.errors import InputError

__all__ = ["ORDER", "read_order", "read_statistics"]

ORDER = "order.txt"
"""The file of a step's folder that lists the others in the order in which their values were computed."""
_MOST = 1 << 26
"""Bytes of a text; a file of statistics has a few hundred."""


def read_order(folder: Path) -> list[str]:
    """Return the names of the files of a step, as its modules ran.

    Raises:
        InputError: there is no such list, or it cannot be read.
    """
    path = folder / ORDER
    if not path.exists() and not path.is_symlink():
        raise InputError(f"{folder} has no {ORDER}", way_out="give folders that a StatisticsSubscriber wrote")
    return list(dict.fromkeys(line for line in _text(path).splitlines() if line))


def read_statistics(folder: Path, name: str) -> str:
    """Return the text of one file that the list names.

    Raises:
        InputError: it is no file of this folder, or cannot be read.
    """
    if Path(name).name != name or not (folder / name).is_file():
        raise InputError(f"{folder / ORDER} names {name!r}, which is no file there", way_out="make the run again")
    return _text(folder / name)


def _text(path: Path) -> str:
    try:
        return read_file(path, _MOST).decode()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read", reason=str(error), way_out="make the run again") from error
