"""Products of complex tensors, whose real and imaginary parts lie along a last axis of two."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ontrain.functions.einsum import result_shape
from ontrain.functions.registry import composite
from ontrain.graph import Builder
from ontrain.operators import Value

__all__: list[str] = []


def _types(inputs: list[Any], *, equation: str, conjugate: int = 0) -> list[tuple[ir.DataType, ir.Shape]]:
    shapes = [list(x.shape)[:-1] for x in inputs]
    return [(inputs[0].dtype, ir.Shape([*result_shape(equation, shapes), 2]))]


@composite("ComplexEinsum", infer=_types)
def complex_einsum(op: Builder, a: Value, b: Value, *, equation: str, conjugate: int = 0) -> Value:
    """a […, 2] and b […, 2] multiplied, and summed, as the equation says of the axes but the last: […, 2].

    Source: torch.einsum of complex tensors, of b's conjugate if `conjugate` is 1. No letter stands twice in a term.
    """
    a_real, a_imag, b_real, b_imag = (
        op.Squeeze(part, [-1]) for x in (a, b) for part in op.Split(x, axis=-1, num_outputs=2, outputs=2)
    )
    if conjugate:
        b_imag = op.Neg(b_imag)
    real = op.Einsum(a_real, b_real, equation=equation) - op.Einsum(a_imag, b_imag, equation=equation)
    imag = op.Einsum(a_real, b_imag, equation=equation) + op.Einsum(a_imag, b_real, equation=equation)
    return op.Concat(op.Unsqueeze(real, [-1]), op.Unsqueeze(imag, [-1]), axis=-1)
