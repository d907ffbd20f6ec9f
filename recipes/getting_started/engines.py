"""What can run the steps."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Engine"]


class Engine(StrEnum):
    ontrain = "ontrain"
    pytorch = "pytorch"
