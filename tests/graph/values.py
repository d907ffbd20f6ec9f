"""Typed values without a producer, for graphs of a few nodes."""

from __future__ import annotations

import onnx_ir as ir


def value(name, shape, dtype=ir.DataType.FLOAT):
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
