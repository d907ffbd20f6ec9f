"""What refusals of a capture advise, where more than one says it."""

from __future__ import annotations

from ontrain.errors import CaptureError

__all__ = ["BROKEN", "draws_from_a_generator"]

BROKEN = 'ORTModule(model, breaks="allow") runs what lies between such lines'
"""What trains a module in whose forward some lines can be in no graph."""


def draws_from_a_generator(source: str | None) -> CaptureError:
    """The refusal of a `torch.Generator` that is none of the graph's."""
    return CaptureError(
        "forward draws from a torch.Generator",
        source=source,
        reason="a graph draws from a generator of its own, which torch.manual_seed sets",
        way_out=f"leave generator= out, or draw before the call and pass the numbers as an input; or {BROKEN}",
    )
