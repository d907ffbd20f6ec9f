"""What the results of onnxruntime's own operators are: dtypes and shapes, read off standard operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ontrain.graph import infer_node, new_attribute

__all__ = ["Types", "real", "standard_types"]

Types = list[tuple[ir.DataType, ir.Shape]]
"""Of each result."""


def standard_types(op_type: str, operands: Sequence[Any], outputs: int = 1, **attributes: Any) -> Types:
    """Return what the results of a standard operator are, each operand a value or a pair of dtype and shape."""
    values: list[ir.Value | None] = []
    for i, operand in enumerate(operands):
        if operand is None:
            values.append(None)
            continue
        dtype, shape = operand if isinstance(operand, tuple) else (operand.dtype, operand.shape)
        known = None if isinstance(operand, tuple) else operand.const_value
        values.append(ir.Value(name=f"x{i}", type=ir.TensorType(dtype), shape=ir.Shape(shape), const_value=known))
    stated = [new_attribute(k, v) for k, v in attributes.items() if v is not None and v != ()]
    types = infer_node(ir.Node("", op_type, values, stated, num_outputs=outputs))
    assert all(kind is not None for kind in types)
    return [kind for kind in types if kind is not None]


def real(value: ir.Value) -> tuple[ir.DataType, Any]:
    """Return an operand for `standard_types` whose whole numbers stand for reals."""
    return ir.DataType.FLOAT, value.shape
