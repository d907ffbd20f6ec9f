"""Constant indices lie within the dimension that they index, counted from either end."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ontrain import GraphError
from ontrain.graph import Builder, new_model, static_dims
from tests.graph.values import value


@pytest.fixture
def op():
    return Builder(new_model([], "g").graph)


def gather(op, *indices, axis=0):
    x = value("x", [3, 4])
    op.graph.inputs.append(x)
    return op.Gather(x, np.array(indices), axis=axis)


@pytest.mark.parametrize("index", [-3, 0, 2])
def test_an_index_within_the_dimension_fits(op, index):
    assert static_dims(gather(op, index)) == (1, 4)


@pytest.mark.parametrize(("index", "axis", "size"), [(3, 0, 3), (-4, 0, 3), (4, 1, 4), (-5, -1, 4)])
def test_an_index_beside_the_dimension_is_named_with_its_size(op, index, axis, size):
    with pytest.raises(GraphError, match=f"Gather has the index {index} for a dimension of size {size}"):
        gather(op, 0, index, axis=axis)


def test_each_place_of_a_tuple_is_for_a_dimension_of_its_own(op):
    x = value("x", [3, 4])
    op.graph.inputs.append(x)
    assert static_dims(op.GatherND(x, np.array([[2, 3]]))) == (1,)
    with pytest.raises(GraphError, match="GatherND has the index 3 for a dimension of size 3"):
        op.GatherND(x, np.array([[3, 2]]))
    with pytest.raises(GraphError, match="tuples of 3 indices for 2 dimensions"):
        op.GatherND(x, np.array([[0, 0, 0]]))


def test_indices_that_the_batch_brings_are_left_to_the_run(op):
    x, ids = value("x", [3, 4]), value("ids", [2], ir.DataType.INT64)
    op.graph.inputs.extend([x, ids])
    assert static_dims(op.Gather(x, ids)) == (2, 4)
