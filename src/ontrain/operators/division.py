"""Division as the standard has it, of integers too."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["check_divisor", "divided"]

Array = np.ndarray[Any, Any]


def check_divisor(y: Array) -> None:
    """Raise ZeroDivisionError if an integer is zero."""
    if not np.all(y):
        raise ZeroDivisionError("an integer is divided by zero")


def divided(x: Array, y: Array) -> Array:
    """The quotient, of integers towards zero: numpy's goes towards minus infinity.

    Raises:
        ZeroDivisionError: an integer is divided by zero.
        OverflowError: the least integer is divided by minus one.
    """
    if x.dtype.kind not in "iu":
        with np.errstate(all="ignore"):
            result: Array = np.divide(x, y).astype(x.dtype)
        return result
    check_divisor(y)
    if x.dtype.kind == "i" and np.any((x == np.iinfo(x.dtype).min) & (y == -1)):
        raise OverflowError("the least integer is divided by minus one")
    quotient, rest = np.divmod(x, y)
    towards_zero: Array = quotient + ((rest != 0) & ((x < 0) != (y < 0)))
    return towards_zero.astype(x.dtype)
