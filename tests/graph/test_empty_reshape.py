"""A Reshape of no elements has the sizes that its maker meant: ONNX's zeros copy, and its -1 needs elements."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ontrain.graph import Builder, static_dims

CASES = {
    "rows of none": ((5, 0, 4), [0, 4], (0, 4)),
    "none as rows": ((0, 4), [5, 0, 4], (5, 0, 4)),
    "rows counted": ((5, 0, 4), [-1, 4], (0, 4)),
    "copied, and the rest": ((5, 0, 2, 4), [0, 0, -1], (5, 0, 8)),
    "copied, and the rest, of no steps": ((0, 5, 2, 4), [0, 0, -1], (0, 5, 8)),
    "copied": ((0, 5, 8), [0, 0, 2, 4], (0, 5, 2, 4)),
    "flat": ((3, 0), [-1], (0,)),
    "elements": ((2, 3, 4), [0, -1], (2, 12)),
}


@pytest.mark.parametrize("name", CASES)
def test_no_elements_are_reshaped(name):
    before, target, after = CASES[name]
    op = Builder(ir.Graph([], [], nodes=[], opset_imports={"": 20}))
    x = ir.Value(name="x", shape=ir.Shape(before), type=ir.TensorType(ir.DataType.FLOAT))
    assert static_dims(op.Reshape(x, target)) == after
