"""Nodes are typed at once, and constants are made once."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder, new_model
from tests.graph.values import value


def test_a_node_knows_its_shape_and_dtype_at_once():
    x, y = value("x", ["n", 4]), value("y", [4, 5])
    op = Builder(new_model([x, y], "g").graph)
    z = op.MatMul(x, y)
    assert z.dtype == ir.DataType.FLOAT and [str(d) for d in z.shape] == ["n", "5"]


def test_numbers_take_the_dtype_of_the_operand_beside_them():
    x, i = value("x", [3], ir.DataType.DOUBLE), value("i", [3], ir.DataType.INT32)
    op = Builder(new_model([x, i], "g").graph)
    assert op.Mul(x, 2).dtype == ir.DataType.DOUBLE
    assert op.Add(1, i).dtype == ir.DataType.INT32
    assert op.Where(op.Greater(x, 0.5), x, 0.0).dtype == ir.DataType.DOUBLE


def test_constants_are_folded_and_equal_ones_made_once():
    op = Builder(new_model([], "g").graph)
    a = op.Add(op.const(2.0), op.const(3.0))
    assert a.const_value.numpy() == 5.0 and op.const(5.0) is a
    assert not list(op.graph)


def test_large_constants_with_other_contents_stay_apart():
    op = Builder(new_model([], "g").graph)
    a, b = op.const(np.zeros(5000, np.float32)), op.const(np.arange(5000, dtype=np.float32))
    assert a is not b and op.const(np.zeros(5000, np.float32)) is a


def test_contents_that_differ_behind_a_common_beginning_stay_apart():
    op = Builder(new_model([], "g").graph)
    ends = np.zeros(5000, np.float32)
    ends[-1] = 1
    assert op.const(np.zeros(5000, np.float32)) is not op.const(ends)


def test_equal_bytes_of_another_dtype_are_another_constant():
    op = Builder(new_model([], "g").graph)
    constants = [op.const(np.zeros(2, dtype)) for dtype in (np.float32, np.int32, np.uint32)]
    assert [value.dtype for value in constants] == [ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.UINT32]


def test_equal_bytes_of_two_dtypes_are_two_constants():
    op = Builder(new_model([], "g").graph)
    eights = [dtype.numpy() for dtype in (ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E4M3FNUZ)]
    first, other = (op.const(np.ones(2, dtype)) for dtype in eights)
    again = op.const(first.const_value.numpy().view(np.uint8).view(eights[1]))
    assert first is not again and {first.dtype, other.dtype} == {ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E4M3FNUZ}
    assert again.dtype == ir.DataType.FLOAT8E4M3FNUZ
