"""An operator between two others, as it stands in a section."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ontrain.graph import Builder, Role, new_model, set_role

B, L, H = 2, 5, 4


def case(name, make, *shapes, rows=(B, L)):
    """An operator's use: `make(op, *inputs)`; the first `rows` axes of its result are rows."""
    return pytest.param(make, shapes, rows, id=name)


def model(make, shapes):
    """The operator behind and before an operator of one input, so that it is inside a section."""
    inputs = [
        set_role(ir.Value(name=f"x{i}", shape=ir.Shape(s), type=ir.TensorType(ir.DataType.FLOAT)), Role.PARAMETER)
        for i, s in enumerate(shapes)
    ]
    onnx_model = new_model(inputs, "test")
    op = Builder(onnx_model.graph)
    y = make(op, *(op.Mul(v, 1.5) for v in inputs))
    y.name = "y"
    onnx_model.graph.outputs.append(op.Identity(y))
    return onnx_model
