"""Root-mean-square normalisation that a file spells out, as one operator again."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.graph import Builder
from ontrain.operators import dims
from ontrain.passes.fusion import Fusion, Match, Pattern, fail
from ontrain.passes.inference.makers import is_over_last_axis

__all__ = ["FuseRMSNormalization"]

_SQUARES = (Pattern("Pow", ("base", "two"), name="square"), Pattern("Mul", ("base", "factor"), name="square"))
_NUMBERS = {"two": 2.0, "one": 1.0, "exponent": -0.5}


def _is_cast(node: ir.Node) -> bool:
    return not node.domain and node.op_type == "Cast"


def _normals(square: Pattern) -> tuple[Pattern, ...]:
    """The ways to divide a value by the root of its mean square, with casts of the quotient behind."""
    moment = Pattern("Add", (Pattern("ReduceMean", (square,), name="mean"), "epsilon"), name="moment", commutes=True)
    root = Pattern("Sqrt", (moment,), name="root")
    inverses = (
        Pattern("Reciprocal", (root,), name="inverse"),
        Pattern("Div", ("one", root), name="inverse"),
        Pattern("Pow", (moment, "exponent"), name="inverse"),
    )
    return (
        *(Pattern("Mul", ("x", inverse), name="normal", commutes=True, through=_is_cast) for inverse in inverses),
        Pattern("Div", ("x", root), name="normal", through=_is_cast),
    )


class FuseRMSNormalization(Fusion):
    """Turn the formula of root-mean-square normalisation over the last axis into the operator.

        x · Reciprocal(Sqrt(ReduceMean(x²) + ε)) · γ   →   RMSNormalization(x, γ, epsilon=ε)

    The square is Pow(x, 2) or x · x, and the inverse of the root also 1 / Sqrt, Pow(…, −1/2) or a division of x. A
    formula in single precision around values of half precision is the operator with its casts:

        Cast(Cast(x) · Reciprocal(…), half) · γ   →   RMSNormalization(x, γ, stash_type=1)

    Equal by the definition of the operator. For inference alone. Left alone: a formula a part of which is read
    elsewhere, other axes, one that is computed in half or double precision, and a scale that is no vector.
    """

    serves, level = True, 2
    patterns = tuple(
        Pattern("Mul", (normal, "scale"), commutes=True) for square in _SQUARES for normal in _normals(square)
    )

    def check(self, match: Match) -> None:
        """Look for one value, its last axis, and numbers where the formula has them."""
        x, scale, mean = match["x"], match["scale"], match.nodes["mean"]
        if match["base"] is not x or match.values.get("factor", x) is not x:
            fail("it is no square of the value that is normalised")
        for name, expected in _NUMBERS.items():
            if name in match.values and _number(match[name]) != expected:
                fail(f"its numbers are not those of a root of mean squares ({name})")
        epsilon = _number(match["epsilon"])
        if epsilon is None or epsilon < 0:
            fail("what is added to the mean square is no number")
        shape, sizes = dims(x), dims(scale)
        if not is_over_last_axis(mean):
            fail("the mean is over other axes than the last")
        if not sizes or dims(match.node.outputs[0]) != shape or sizes[-1] != shape[-1] or {*sizes[:-1], 1} != {1}:
            fail("the scale is no vector")
        if x.dtype != ir.DataType.FLOAT:
            fail("it is not computed in single precision")
        if any(node.outputs[0].dtype != scale.dtype for node in match.inner if _is_cast(node)):
            fail("its result is rounded before it is multiplied by the scale")
        if _narrowed(match) and _source(x).dtype != scale.dtype:
            fail("its result has another precision than its value")

    def replace(self, op: Builder, match: Match, operands: dict[str, ir.Value | None]) -> list[ir.Value | None]:
        """Emit the operator."""
        x, scale = operands["x"], operands["scale"]
        assert x is not None
        if _narrowed(match):
            x = _source(x)
        return [op.RMSNormalization(x, scale, axis=-1, epsilon=_number(match["epsilon"]), stash_type=1)]


def _narrowed(match: Match) -> bool:
    """Whether what is normalised is cast to the half precision of the scale."""
    return match["scale"].dtype != match["x"].dtype


def _source(x: ir.Value) -> ir.Value:
    """What a value was cast from; the value itself where it is no cast."""
    node = x.producer()
    source = node.inputs[0] if node is not None and _is_cast(node) else None
    return x if source is None else source


def _number(value: ir.Value) -> float | None:
    """The one number of a constant."""
    constant = value.const_value
    return float(constant.numpy().reshape(())) if constant is not None and constant.size == 1 else None
