"""What follows a linear layer at each place of its result, computed where the result is made."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.graph import Builder, static_dims
from ontrain.operators import OPERATORS, attribute_of
from ontrain.passes.fusion import Fusion, Match, Pattern, fail

__all__ = ["FuseLinearActivations"]


def _is_reshape(node: ir.Node) -> bool:
    return not node.domain and node.op_type == "Reshape"


_GEMM = Pattern("Gemm", ("x", "w", "b?"), name="gemm", through=_is_reshape)


class FuseLinearActivations(Fusion):
    """Let a linear layer apply the activation that follows, or add what is added to its result.

        Gelu(Reshape(Gemm(x, W, b)))      →   Reshape(Linear(x, W, b, activation="Gelu"))
        Reshape(Gemm(x, W, b)) + z        →   Reshape(Linear(x, W, b, Reshape(z)))

    Equal by the definition of Linear, whose rows are those of the layer. Also Relu, Sigmoid, Tanh and Silu. Left alone:
    sums that broadcast, a bias that is not one number a column, scaled products, and results that others read.
    """

    serves, level = True, 2
    patterns = (
        *(
            Pattern(kind, (_GEMM,), domain=domain)
            for (domain, kind), record in OPERATORS.items()
            if "Gemm" in record.epilogue_of
        ),
        Pattern("Add", (_GEMM, "z"), commutes=True),
    )

    def check(self, match: Match) -> None:
        """Look for a product as it is, for one number a column, and for a sum of equal shapes."""
        gemm, b, z = match.nodes["gemm"], match.values.get("b"), match.values.get("z")
        if attribute_of(gemm, "transA") or attribute_of(gemm, "alpha") != 1 or attribute_of(gemm, "beta") != 1:
            fail("the product is scaled, or its left factor is transposed")
        if b is not None and static_dims(b) != static_dims(gemm.outputs[0])[1:]:
            fail("what is added to the product is not one number a column")
        if z is not None and z.shape != match.node.outputs[0].shape:
            fail("what is added to the layer's result has another shape")
        if z is not None and any(node.outputs[0].shape != z.shape for node in match.inner[:-1]):
            fail("the layer's result broadcasts where it is added")

    def replace(self, op: Builder, match: Match, operands: dict[str, ir.Value | None]) -> list[ir.Value | None]:
        """Emit the layer, in the shape of the last node."""
        gemm, node = match.nodes["gemm"], match.node
        rows, shape = list(static_dims(gemm.outputs[0])), list(static_dims(node.outputs[0]))
        z = operands.get("z")
        if z is not None and shape != rows:
            z = op.Reshape(z, rows)
        attributes = {"transB": attribute_of(gemm, "transB")}
        if node.op_type != "Add":
            attributes["activation"] = node.op_type
        if node.op_type == "Gelu":
            attributes["approximate"] = attribute_of(node, "approximate")
        inputs = [operands["x"], operands["w"], operands.get("b"), z]
        while inputs[-1] is None:
            inputs.pop()
        layer: ir.Value = op.composite("Linear", *inputs, **attributes)
        return [layer if shape == rows else op.Reshape(layer, shape)]
