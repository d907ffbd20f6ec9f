"""What refusals of a capture advise, where more than one says it."""

from __future__ import annotations

__all__ = ["BROKEN"]

BROKEN = 'ORTModule(model, breaks="allow") runs what lies between such lines'
"""What trains a module in whose forward some lines can be in no graph."""
