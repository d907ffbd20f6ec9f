"""How the graphs of training on a device name a parameter's gradient and a tensor's next value; files keep no more."""

from __future__ import annotations

__all__ = ["gradient_name", "next_name"]


def gradient_name(parameter: str) -> str:
    """Return the name of a parameter's gradient: "fc.weight_grad"."""
    return f"{parameter}_grad"


def next_name(tensor: str) -> str:
    """Return the name of the next value of a parameter, buffer or moment: "fc.weight.next"."""
    return f"{tensor}.next"
