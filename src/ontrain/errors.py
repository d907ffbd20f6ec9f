"""Every error a user can meet. All are `ValueError`s: the input was wrong, and the message says how to mend it."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "CaptureError",
    "CheckpointError",
    "GradientError",
    "GraphError",
    "InputError",
    "NonFiniteLossError",
    "OntrainError",
    "OptionError",
    "ProcessError",
    "ProviderError",
    "nearest",
]


class OntrainError(ValueError):
    """Base of all errors raised for users.

    Args:
        problem: what went wrong, in one sentence.
        node: the graph node concerned, printed by name and operator.
        source: the line of the user's model that made the node.
        reason: why ontrain cannot go on.
        way_out: what the user can do about it.
    """

    def __init__(
        self,
        problem: str,
        *,
        node: str | None = None,
        source: str | None = None,
        reason: str | None = None,
        way_out: str | None = None,
    ) -> None:
        self.problem, self.node, self.source = problem, node, source
        self.reason, self.way_out = reason, way_out
        parts = (("node", node), ("source", source), ("reason", reason), ("way out", way_out))
        super().__init__("\n".join([problem, *(f"  {label}: {text}" for label, text in parts if text)]))


class CaptureError(OntrainError):
    """A module could not be turned into a graph."""


class GraphError(OntrainError):
    """A graph is malformed: a dangling name, a shape that does not fit, a node out of order."""


class GradientError(OntrainError):
    """An operator on the path from the loss to a parameter has no gradient."""


class ProviderError(OntrainError):
    """An execution provider cannot compile or run a graph."""


class InputError(OntrainError):
    """A batch does not fit the graph: its arity, dtype, shape, device or values."""


class OptionError(OntrainError):
    """An option, hyper-parameter or name is unknown or out of range."""


class CheckpointError(OntrainError):
    """A checkpoint is torn, altered, or belongs to another model."""


class ProcessError(OntrainError):
    """Another process of the run has died, is not there, or does not fit this one."""


class NonFiniteLossError(OntrainError):
    """The loss became NaN or infinite at the step named."""


def nearest(name: object, known: Iterable[str], count: int = 3) -> str:
    """Return the known names closest to `name` as a phrase for an error message."""
    import difflib

    known = list(known)
    close = difflib.get_close_matches(str(name), known, n=count, cutoff=0.4) or sorted(known)[:count]
    return ", ".join(repr(name) for name in close) if close else "none are known"
