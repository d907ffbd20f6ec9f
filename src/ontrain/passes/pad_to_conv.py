"""Zeros around images as pads of the convolution that reads them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ontrain.graph import Builder
from ontrain.operators import attribute_of
from ontrain.passes.fusion import Fusion, Match, Pattern, fail

__all__ = ["PadToConv"]

_OWN = ("pads", "auto_pad")


class PadToConv(Fusion):
    """Let a convolution pad its images itself.

        Conv(Pad(x, p), w, b, pads=q)   →   Conv(x, w, b, pads=p + q)

    Equal because a convolution's pads are zeros. The padded images are neither written nor kept for backward. Left
    alone: pads with more behind than before, which kernels of convolutions do not take; other values than zero; pads
    that crop, or add images or channels.
    """

    patterns = (Pattern("Conv", (Pattern("Pad", ("x", "amounts", "value?", "axes?"), name="pad"), "w", "b?")),)

    def check(self, match: Match) -> None:
        """Look at what the pad adds, and where."""
        if attribute_of(match.nodes["pad"], "mode") != "constant":
            fail("the pad repeats the image")
        value = match.values["value"]
        if value is not None and (value.const_value is None or value.const_value.numpy().any()):
            fail("the pad adds other numbers than zeros")
        if attribute_of(match.node, "auto_pad") not in ("NOTSET", "VALID"):
            fail("the convolution chooses its pads by the size of the images")
        pads = _pads(match)
        half = len(pads) // 2
        if pads[:half] != pads[half:]:
            fail("the pads before and behind the image differ")

    def replace(self, op: Builder, match: Match, operands: dict[str, ir.Value | None]) -> list[ir.Value | None]:
        """Emit the convolution with the sum of the pads."""
        others = {name: attr.value for name, attr in match.node.attributes.items() if name not in _OWN}
        return [op.Conv(operands["x"], operands["w"], operands.get("b"), pads=_pads(match), **others)]


def _pads(match: Match) -> list[int]:
    """The pads of both together: before each axis of an image, and behind each."""
    shape = match["w"].shape
    if shape is None:
        fail("the rank of the filters is open")
    amounts = _constant(match, "amounts")
    axes = [axis % len(shape) for axis in (_constant(match, "axes") if match.values["axes"] else range(len(shape)))]
    if any(amount < 0 for amount in amounts):
        fail("the pad crops the image")
    pads = [0] * (2 * len(shape))
    for place, amount in zip([*axes, *(axis + len(shape) for axis in axes)], amounts, strict=True):
        pads[place] = amount
    before, behind = pads[: len(shape)], pads[len(shape) :]
    if any((*before[:2], *behind[:2])):
        fail("the pad adds images or channels")
    own = attribute_of(match.node, "pads") or [0] * (2 * len(shape) - 4)
    return [first + second for first, second in zip([*before[2:], *behind[2:]], own, strict=True)]


def _constant(match: Match, name: str) -> Sequence[int]:
    numbers = match[name].const_value
    if numbers is None:
        fail("the pads are computed")
    return [int(number) for number in numbers.numpy()]
