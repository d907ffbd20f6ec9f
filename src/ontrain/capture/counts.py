"""Numbers that forward changes among the attributes of its module, as `self.calls += 1` does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ontrain.capture.tables import MISSING
from ontrain.capture.writes import Write
from ontrain.sizes import Size

__all__ = ["Count", "counts"]


@dataclass(frozen=True)
class Count:
    """One attribute of one submodule, and what a call of forward makes of it.

    Attributes:
        module: the submodule.
        name: of the attribute.
        before: its value when forward begins.
        after: its value when forward ends.
    """

    module: nn.Module
    name: str
    before: int | float
    after: int | float | Size

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
    """Yield the writes that change a number of a module. A first one may have been an attribute of the class.

    Args:
        writes: known ones; what follows from the values of tensors is left out.
    """
    for write in writes:
        module, now = write.table.owner, write.after
        was: Any
        if isinstance(module, nn.Module) and write.is_repeatable:
            was = getattr(type(module), write.name, None) if write.before is MISSING else write.before
            if type(was) in _NUMBERS and (type(now) is type(was) or (type(was) is int and isinstance(now, Size))):
                yield Count(module, write.name, was, now)
