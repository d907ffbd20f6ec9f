"""Numbers that forward changes among the attributes of its module, as `self.calls += 1` does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ontrain.capture.sympy_sizes import size_of
from ontrain.capture.tables import MISSING
from ontrain.capture.writes import Write
from ontrain.sizes import Size

__all__ = ["Count", "counts", "known_counts"]


@dataclass(frozen=True)
class Count:
    """One attribute of one submodule, and what a call of forward makes of it.

    Attributes:
        module: the submodule.
        name: of the attribute.
        before: its value when forward begins.
        after: its value when forward ends; torch's number while it is traced, if it follows from sizes.
    """

    module: nn.Module
    name: str
    before: int | float
    after: int | float | torch.SymInt | Size

    def named(self) -> Count:
        """The same, with an expression of symbols in the place of torch's number."""
        return replace(self, after=size_of(self.after.node.expr)) if isinstance(self.after, torch.SymInt) else self

    def value(self, sizes: Mapping[str, int]) -> Any:
        """The value when a call ends that found it as it was before.

        Args:
            sizes: of the call, by symbol; all symbols of `after` are among them.
        """
        return self.after.value(sizes) if isinstance(self.after, Size) else self.after

    def __str__(self) -> str:
        kind = type(self.module).__name__
        after = "one that follows from sizes" if isinstance(self.after, Size) else self.after
        return f"forward changes the attribute {self.name!r} of {kind} from {self.before} to {after}"


_NUMBERS = (int, float)


def counts(writes: Iterable[Write]) -> Iterator[Count]:
    """Yield the writes that change a number of a module. A first one may have been an attribute of the class."""
    for write in writes:
        module, now = write.table.owner, write.after
        was: Any
        if isinstance(module, nn.Module):
            was = getattr(type(module), write.name, None) if write.before is MISSING else write.before
            if type(was) in _NUMBERS and (
                type(now) is type(was) or (type(was) is int and isinstance(now, torch.SymInt))
            ):
                yield Count(module, write.name, was, now)


def known_counts(counts: Sequence[Count], symbols: set[str]) -> list[Count]:
    """Return counts by numbers and by sizes of the inputs.

    Args:
        counts: what forward changes.
        symbols: the sizes of the inputs. What follows from the values of tensors is left out.
    """
    named = [count.named() for count in counts]
    return [count for count in named if not isinstance(count.after, Size) or count.after.symbols() <= symbols]
