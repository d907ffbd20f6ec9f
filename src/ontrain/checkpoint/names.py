"""How files name a tensor that belongs to a parameter: "fc.weight.Moment_1"."""

from __future__ import annotations

__all__ = ["parsed_name", "tensor_name"]


def tensor_name(parameter: str, kind: str) -> str:
    """Return the name in a file of what is kept of this kind for a parameter."""
    return f"{parameter}.{kind}"


def parsed_name(name: str) -> tuple[str, str]:
    """Return the parameter and the kind that a name in a file speaks of; kinds have no dot."""
    parameter, _, kind = name.rpartition(".")
    return parameter, kind
