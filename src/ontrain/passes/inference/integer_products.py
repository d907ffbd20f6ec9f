"""Products of whole numbers that stand for reals, scaled where they are made."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.graph import Builder
from ontrain.operators import MICROSOFT
from ontrain.passes.fusion import Fusion, Match, Pattern, fail

__all__ = ["FuseIntegerProducts"]

_PRODUCT = Pattern("MatMulInteger", ("a", "b", "a_zero?", "b_zero?"))
_REAL = Pattern("Cast", (_PRODUCT,), name="cast")
_SCALED = Pattern("Mul", (_REAL, Pattern("Mul", ("a_scale", "b_scale"))), commutes=True)


class FuseIntegerProducts(Fusion):
    """Let a product of whole numbers be scaled, and take its bias, where it is made.

        Cast(MatMulInteger(a, W, a₀, W₀)) · (s · t) + b   →   MatMulIntegerToFloat(a, W, s, t, a₀, W₀, b)

    The form is that of onnxruntime's dynamic quantisation. Equal by the definition of MatMulIntegerToFloat, which
    onnxruntime makes of it, too. Left alone: other types than float32, vectors and batches of weights, zero points for
    each row, scales that are neither one number nor one a column, a bias that is not one number a column, and results
    that others read.
    """

    serves, level = True, 2
    patterns = (Pattern("Add", (_SCALED, "bias"), commutes=True), _SCALED)

    def check(self, match: Match) -> None:
        """Look for a matrix, one scale, and numbers of columns."""
        a, b, bias = match["a"], match["b"], match.values.get("bias")
        if match.nodes["cast"].outputs[0].dtype != ir.DataType.FLOAT:
            fail("the product is scaled in another type than float32")
        if a.shape is None or b.shape is None or len(a.shape) < 2 or len(b.shape) != 2:
            fail("the right factor is no matrix, or the left one a vector")
        if not _is_one(match["a_scale"]) or not (_is_one(match.values.get("a_zero"))):
            fail("the left factor has more scales or zero points than one")
        if not _is_one(match["b_scale"]) and match["b_scale"].shape != b.shape[1:]:
            fail("the scale of the right factor is not one number a column")
        if bias is not None and bias.shape != b.shape[1:]:
            fail("what is added to the product is not one number a column")

    def replace(self, op: Builder, match: Match, operands: dict[str, ir.Value | None]) -> list[ir.Value | None]:
        """Emit the product."""
        names = ("a", "b", "a_scale", "b_scale", "a_zero", "b_zero", "bias")
        inputs = [operands.get(name) for name in names]
        while inputs[-1] is None:
            inputs.pop()
        product: ir.Value = op.call(MICROSOFT, "MatMulIntegerToFloat", inputs, {})
        return [product]


def _is_one(value: ir.Value | None) -> bool:
    """Whether a value is absent or one number of at most one axis."""
    return value is None or (value.shape is not None and value.shape.dims in ((), (1,)))
