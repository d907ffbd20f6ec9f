"""Attributes that forward counts in, `self.calls += 1`: a call of the graph leaves them as a call of forward would."""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType

from ontrain.capture import Count

__all__ = ["Following", "following"]


@dataclass(frozen=True)
class Following:
    """What calls of a graph do to an attribute.

    Attributes:
        count: what a call of forward did to it while it was captured.
        adds: whether forward adds the same number whatever the value is, and nothing else depends on it. If not, the
            graph is for the one value.
    """

    count: Count
    adds: bool

    @property
    def place(self) -> tuple[int, str]:
        """Which table of attributes it is in, and its name there."""
        return id(self.count.module.__dict__), self.count.name

    def apply(self) -> None:
        """Change the attribute as one call of forward does."""
        count = self.count
        now = getattr(count.module, count.name) + count.after - count.before if self.adds else count.after
        setattr(count.module, count.name, now)


def following(counts: Iterable[Count], functions: Iterable[FunctionType]) -> list[Following]:
    """Return what calls of a graph do to the numbers that forward changes.

    Args:
        counts: the numbers.
        functions: all that forward may run of the user's and of the modules' classes.
    """
    counts = list(counts)
    if not counts:
        return []
    codes = [code for function in functions for code in _codes(function.__code__)]
    return [Following(c, type(c.after) is int and not any(_reads(code, c.name) for code in codes)) for c in counts]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _reads(code: CodeType, name: str) -> bool:
    """Whether code does anything with an attribute of this name but add a constant to it."""
    if name in code.co_consts:  # as getattr would have it
        return True
    if name not in code.co_names:
        return False
    listing = list(dis.get_instructions(code))
    loads = [i for i, instruction in enumerate(listing) if instruction.argval == name and "LOAD" in instruction.opname]
    return not all(_is_step(listing[i : i + 5], name) for i in loads)


def _is_step(listing: list[dis.Instruction], name: str) -> bool:
    """Whether instructions from a load on are `+= constant` or `= … + constant` of the same attribute.

    Between the sum and the store stands the object again, by a swap or by its name.
    """
    if len(listing) < 5:
        return False
    _, constant, sum_, again, store = listing
    return (
        constant.opname.startswith(("LOAD_CONST", "LOAD_SMALL_INT"))
        and sum_.opname == "BINARY_OP"
        and sum_.argrepr in ("+", "+=", "-", "-=")
        and again.opname in ("SWAP", "LOAD_FAST", "LOAD_FAST_BORROW")
        and store.opname == "STORE_ATTR"
        and store.argval == name
    )
