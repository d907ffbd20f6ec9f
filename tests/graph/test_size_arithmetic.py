"""Nodes that compute a size give what the expression says."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from ontrain.errors import CaptureError
from ontrain.graph import Builder, new_model
from ontrain.graph.size_arithmetic import SizeArithmetic, dimension_of_inputs
from ontrain.sizes import Size, parse


def computed(*sizes, batch, length):
    x = ir.Value(name="x", shape=ir.Shape(["batch", 3, "length"]), type=ir.TensorType(ir.DataType.FLOAT))
    model = new_model([x], "sizes")
    op, arithmetic = Builder(model.graph), SizeArithmetic(dimension_of_inputs)
    for number, size in enumerate(sizes):
        value = op.identity(arithmetic.value(op, size))
        value.name = f"y{number}"
        model.graph.outputs.append(value)
    feeds = {"x": np.zeros((batch, 3, length), np.float32)}
    return model, ReferenceEvaluator(ir.to_proto(model)).run(None, feeds)


@pytest.mark.parametrize(
    "at", [{"batch": 1, "length": 1}, {"batch": 7, "length": 12}, {"batch": 64, "length": 5}], ids=str
)
@pytest.mark.parametrize(
    "text",
    ["0", "12", "batch", "3*batch*length + length - 2", "batch*batch", "(batch + 1)//2", "(batch - 100)//7",
     "batch//length", "(length - batch) % 5", "max(batch, length, 9)", "min(batch - length, 4)", "batch <= length",
     "batch % 2 == 1", "batch != length", "floor(batch/length)", "ceil(batch/length)", "trunc(batch/length)",
     "trunc(44100000003*length/16001)", "batch/3", "ceil(7/10*float(length))", "(float(batch) - 9) % 3/2",
     "float(batch) // 3/10", "(float(batch) - 100) // 7/2", "sqrt(length)"],
)  # fmt: skip
def test_nodes_compute_what_the_expression_says(text, at):
    _, (number,) = computed(parse(text), **at)
    assert number.shape == (1,) and number[0] == parse(text).value(at)


def test_fractions_are_computed_in_double_precision():
    size = Size.symbol("batch") * Size.symbol("length") * Fraction(1, 3)
    _, (number,) = computed(size, batch=5, length=7)
    assert number.dtype == np.float64 and number[0] == 35 * (1 / 3)


def test_a_size_is_computed_once():
    model, _ = computed(parse("batch*length"), parse("length*batch"), parse("batch*length + 1"), batch=2, length=3)
    assert [node.op_type for node in model.graph].count("Mul") == 1
    assert [node.op_type for node in model.graph].count("Shape") == 2


def test_a_function_without_an_operator_is_refused():
    with pytest.raises(CaptureError, match=r"the size where\(batch > 3, 1, length\) has no translation"):
        computed(parse("where(batch > 3, 1, length)"), batch=2, length=3)
