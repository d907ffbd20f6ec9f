"""Refusals of a forward that changes what a graph holds; a first call may be the last one that does."""

from __future__ import annotations

from ontrain.errors import CaptureError

__all__ = ["ChangedStateError", "NewBufferError"]


class ChangedStateError(CaptureError):
    """Forward writes to a parameter, or gives a tensor of its module other memory."""


class NewBufferError(ChangedStateError):
    """Forward makes a buffer anew, in another shape."""
