"""Sizes are known and fit before anything is allocated."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ontrain import GraphError
from ontrain.graph import Builder, check_sizes, nbytes, new_model
from tests.graph.values import value


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ([2, 3], ir.DataType.FLOAT, 24),
        ([], ir.DataType.INT64, 8),
        ([3], ir.DataType.INT4, 2),
        ([0, 5], ir.DataType.DOUBLE, 0),
        (["n", 5], ir.DataType.DOUBLE, None),
    ],
)
def test_bytes_are_those_of_all_elements_rounded_up(shape, dtype, size):
    assert nbytes(value("x", shape, dtype)) == size


def test_operands_and_results_of_a_node_fit_together():
    x = value("x", [100])
    model = new_model([x], "g")
    model.graph.outputs.append(Builder(model.graph).Exp(x))
    check_sizes(model, 800)
    with pytest.raises(GraphError, match="Exp needs"):
        check_sizes(model, 799)


def test_an_input_beyond_the_machine_is_named():
    model = new_model([value("x", [100])], "g")
    with pytest.raises(GraphError, match="input 'x' has"):
        check_sizes(model, 399)
