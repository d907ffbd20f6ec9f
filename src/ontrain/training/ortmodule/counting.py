"""Attributes that forward counts in, `self.calls += 1`: a call of the graph leaves them as a call of forward would.

What it counts may be a size, `self.rows += x.shape[0]`.
"""

from __future__ import annotations

import dis
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType

from ontrain.capture import Count
from ontrain.sizes import Size

__all__ = ["Following", "following", "warn_of_counters"]

_COMPUTES = (
    "LOAD_FAST", "LOAD_CONST", "LOAD_SMALL_INT", "LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "BINARY_", "PUSH_NULL",
    "PRECALL", "CALL",
)  # fmt: skip
"""Instructions that compute a number and leave alone what lies under it."""


@dataclass(frozen=True)
class Following:
    """What calls of a graph do to an attribute.

    Attributes:
        count: what a call of forward did to it while it was captured.
        adds: whether forward adds the same number, or the same expression of sizes, whatever the value is, and nothing
            else depends on it. If not, the graph is for the one value.
    """

    count: Count
    adds: bool

    @property
    def place(self) -> tuple[int, str]:
        """Which table of attributes it is in, and its name there."""
        return id(self.count.module.__dict__), self.count.name

    def apply(self, sizes: Mapping[str, int]) -> None:
        """Change the attribute as one call of forward does, with these sizes by symbol."""
        count = self.count
        after = count.value(sizes)
        now = getattr(count.module, count.name) + after - count.before if self.adds else after
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
    followed = []
    for count in counts:
        loads = [step for code in codes for step in _loads(code, count.name)]
        adds = type(count.after) is not float and all(loads)
        # A size that forward sets, as `self.width = x.shape[3]` does, it has in each call before it reads it.
        if adds or any(loads) or not isinstance(count.after, Size):
            followed.append(Following(count, adds))
    return followed


def warn_of_counters(followed: Iterable[Following], told: set[tuple[int, str]]) -> None:
    """Warn of numbers that a graph cannot count, once of each.

    Args:
        followed: what calls of a graph do to numbers.
        told: the modules and names that were warned of; more are added.
    """
    for counting in followed:
        place = id(counting.count.module), counting.count.name
        if not counting.adds and place not in told:
            told.add(place)
            warnings.warn(
                f"{counting.count}: each other value of it is captured anew; count in a buffer, "
                "self.register_buffer(name, torch.tensor(0)), and compute with that",
                stacklevel=7,
            )


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _loads(code: CodeType, name: str) -> Iterator[bool]:
    """Of each load of an attribute of this name in code, whether a number is added to it and it is stored."""
    if name in code.co_consts:  # as getattr would have it
        yield False
    if name in code.co_names:
        listing = list(dis.get_instructions(code))
        for i, instruction in enumerate(listing):
            if instruction.argval == name and "LOAD" in instruction.opname:
                yield _is_step(listing[i + 1 :], name)


def _is_step(listing: list[dis.Instruction], name: str) -> bool:
    """Whether instructions behind a load are `+= number` or `= … + number` of the same attribute.

    The number may be a constant or computed, as `x.shape[0]` and `len(x)` are. Between the sum and the store stands the
    object again, by a swap or by its name. Several numbers may be added or subtracted.
    """
    depth = 1  # of the stack, above what stood on it before the load
    for i, instruction in enumerate(listing):
        if instruction.opname == "BINARY_OP" and depth == 2:
            if instruction.argrepr not in ("+", "+=", "-", "-="):
                return False
            if _stores(listing[i + 1 : i + 3], name):
                return True
            depth = 1
            continue
        if not instruction.opname.startswith(_COMPUTES) or instruction.argval == name:
            return False
        if "GLOBAL" in instruction.opname and instruction.argval not in ("len", "int"):
            return False
        depth += dis.stack_effect(instruction.opcode, instruction.arg)
        if depth < 2:
            return False
    return False


def _stores(listing: list[dis.Instruction], name: str) -> bool:
    """Whether two instructions store what lies on the stack in an attribute of this name."""
    if len(listing) < 2:
        return False
    again, store = listing
    return (
        again.opname in ("SWAP", "LOAD_FAST", "LOAD_FAST_BORROW")
        and store.opname == "STORE_ATTR"
        and store.argval == name
    )
