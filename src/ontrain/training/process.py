"""What a program sets once for all trainers of its process."""

from __future__ import annotations

from ontrain.errors import OptionError

__all__ = ["seed", "set_seed"]

_settings = {"seed": 0}


def set_seed(value: int) -> None:
    """Seed the dropout of trainers that are created from now on and have no `utils.seed` of their own.

    Raises:
        OptionError: the seed is no whole number from 0.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise OptionError(f"the seed is {value!r}", way_out="use a whole number from 0, of at most 63 bits")
    _settings["seed"] = value


def seed() -> int:
    """Return what `set_seed` has set, 0 at first."""
    return _settings["seed"]
