"""Numbers that forward changes among the attributes of its module, as `self.calls += 1` does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

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
    after: int | float

    def __str__(self) -> str:
        kind = type(self.module).__name__
        return f"forward changes the attribute {self.name!r} of {kind} from {self.before} to {self.after}"


def counts(module: nn.Module, before: Mapping[str, Any]) -> Iterator[Count]:
    """Yield the numbers of a module that are others now. A first one may have been an attribute of the class.

    Args:
        module: after a call of forward.
        before: its attributes before the call.
    """
    for name, now in module.__dict__.items():
        value: Any = before[name] if name in before else getattr(type(module), name, None)
        if type(value) in (int, float) and type(now) is type(value) and now != value:
            yield Count(module, name, value, now)
