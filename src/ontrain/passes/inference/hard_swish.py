"""HardSwish and HardSigmoid that a file spells out, as one operator again."""

from __future__ import annotations

import math

import onnx_ir as ir

from ontrain.graph import Builder
from ontrain.passes.fusion import Fusion, Match, Pattern, fail

__all__ = ["FuseHardActivations"]

_ADD = Pattern("Add", ("x", "three"), name="add", commutes=True)
_CLIP = Pattern("Clip", (_ADD, "zero?", "six?"), name="clip")
_NUMBERS = {"three": 3.0, "zero": 0.0, "six": 6.0, "divisor": 6.0, "factor": 1 / 6}


class FuseHardActivations(Fusion):
    """Turn the formula of HardSwish or HardSigmoid into the operator.

        x · Clip(x + 3, 0, 6) / 6   →   HardSwish(x)
        Clip(x + 3, 0, 6) / 6       →   HardSigmoid(x, alpha=1/6, beta=1/2)

    The division may come first, and may be a product with 1/6. Equal by the definition of the operators. For inference
    alone: at the bounds Clip and HardSwish have other derivatives. Left alone: other numbers, and formulas a part of
    which is read elsewhere.
    """

    serves, level = True, 2
    patterns = tuple(
        pattern
        for number, kind, commutes in (("divisor", "Div", False), ("factor", "Mul", True))
        for pattern in (
            Pattern(kind, (Pattern("Mul", ("again", _CLIP), name="product", commutes=True), number), commutes=commutes),
            Pattern("Mul", ("again", Pattern(kind, (_CLIP, number), name="share", commutes=commutes)), commutes=True),
            Pattern(kind, (_CLIP, number), commutes=commutes),
        )
    )

    def check(self, match: Match) -> None:
        """Look for the operators' numbers, and for one value."""
        for name, expected in _NUMBERS.items():
            value = match.values.get(name)
            if name in match.values and (value is None or not _is(value, expected)):
                fail(f"its numbers are not those of HardSwish ({name})")
        if "again" in match.values and match["again"] is not match["x"]:
            fail("it is a product of two values")

    def replace(self, op: Builder, match: Match, operands: dict[str, ir.Value | None]) -> list[ir.Value | None]:
        """Emit the operator."""
        x = operands["x"]
        return [op.HardSwish(x) if "again" in match.values else op.HardSigmoid(x, alpha=1 / 6, beta=0.5)]


def _is(value: ir.Value, expected: float) -> bool:
    """Whether a value is a constant of this one number, as float32 has it."""
    constant = value.const_value
    if constant is None or constant.size != 1:
        return False
    return math.isclose(float(constant.numpy().reshape(())), expected, rel_tol=1e-6, abs_tol=0.0)
