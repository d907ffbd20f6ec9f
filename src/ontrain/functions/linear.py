"""A linear layer with what follows it."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder
from ontrain.operators import Value

__all__: list[str] = []


def _linear_types(inputs: list[Any], *, transB: int = 0, **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    x, w = inputs[0], inputs[1]
    return [(x.dtype, ir.Shape([x.shape[0], w.shape[1 - transB]]))]


@composite("Linear", infer=_linear_types)
def linear(
    op: Builder, x: Value, w: Value, b: Value | None = None, z: Value | None = None,
    *, transB: int = 0, activation: str = "", approximate: str = "none",
) -> Value:  # fmt: skip
    """activation(x W + b + z) for x [R, K], W [K, C] or, with transB, [C, K], b [C] and z [R, C].

    Args:
        op: builds the body.
        x: rows.
        w: the weight.
        b: added to each row.
        z: added to the product.
        transB: whether the weight's rows are the results' columns.
        activation: Relu, Sigmoid, Tanh, Gelu or Silu; none by default.
        approximate: of Gelu.
    """
    y = op.Gemm(x, w, b, transB=transB)
    y = y if z is None else y + z
    if activation == "Silu":
        return op.composite("Silu", y)
    attributes = {"approximate": approximate} if activation == "Gelu" else {}
    return getattr(op, activation)(y, **attributes) if activation else y
