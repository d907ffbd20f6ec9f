"""What each step is told beside its batch: numbers under the same names in options, graphs and kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

__all__ = ["Hyper"]

Number = TypeVar("Number")


@dataclass(frozen=True)
class Hyper(Generic[Number]):
    """The numbers of a step, or the graph inputs that bring them: 0-d float32, role HYPER, called as the fields.

    Attributes:
        learning_rate: of this update.
        step: the number of the update, from 1.
        loss_scale: what the loss is multiplied by before it is differentiated, and the gradient divided by after.
    """

    learning_rate: Number
    step: Number
    loss_scale: Number

    @classmethod
    def of(cls, make: Callable[[str], Number]) -> Hyper[Number]:
        """Make one of each by its name."""
        return cls(*[make(field.name) for field in fields(cls)])

    def feeds(self) -> dict[str, Number]:
        """Return them by the names of a graph's inputs."""
        return dict(vars(self))
