"""Attributes that forward counts in, `self.calls += 1`, whatever their value is: a call of the graph counts, too.

What it counts may be a size, `self.rows += x.shape[0]`.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType

from ontrain.capture import Count

__all__ = ["Following", "following", "loads_of"]

_COMPUTES = (
    "LOAD_FAST", "LOAD_CONST", "LOAD_SMALL_INT", "LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "BINARY_", "PUSH_NULL",
    "PRECALL", "CALL",
)  # fmt: skip
"""Instructions that compute a number and leave alone what lies under it."""


@dataclass(frozen=True)
class Following:
    """An attribute to which calls of a graph add the same number, or the same expression of sizes.

    Attributes:
        count: what a call of forward did to it while it was captured.
    """

    count: Count

    @property
    def place(self) -> tuple[int, str]:
        """Which table of attributes it is in, and its name there."""
        return id(self.count.module.__dict__), self.count.name

    def apply(self, sizes: Mapping[str, int]) -> None:
        """Change the attribute as one call of forward does, with these sizes by symbol."""
        count = self.count
        setattr(count.module, count.name, getattr(count.module, count.name) + count.value(sizes) - count.before)


def following(counts: Iterable[Count], functions: Iterable[FunctionType]) -> list[Following]:
    """Return the counts that forward only adds to, and that nothing depends on.

    Args:
        counts: the numbers that forward changes.
        functions: all that forward may run of the user's and of the modules' classes.
    """
    counts = list(counts)
    if not counts:
        return []
    functions = list(functions)
    return [
        Following(count)
        for count in counts
        if type(count.after) is not float and (loads := loads_of(count.name, functions)) and all(loads)
    ]


def loads_of(name: str, functions: Iterable[FunctionType]) -> list[bool]:
    """Return of each load of an attribute in code whether a number is added to it and it is stored."""
    return [step for function in functions for code in _codes(function.__code__) for step in _loads(code, name)]


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
