"""Axes are checked against ranks."""

from __future__ import annotations

import pytest

from ontrain import GraphError
from ontrain.graph import Builder, new_model, static_dims
from tests.graph.values import value


@pytest.mark.parametrize("axis", [-3, 2])
def test_an_axis_beside_the_shape_is_refused_before_onnx_reads_there(axis):
    x = value("x", [3, 4])
    op = Builder(new_model([x], "g").graph)
    with pytest.raises(GraphError, match=f"Softmax has the axis {axis} for an input of 2 dimensions"):
        op.Softmax(x, axis=axis)
    assert static_dims(op.Softmax(x, axis=-2)) == static_dims(op.Softmax(x, axis=1)) == (3, 4)


def test_an_axis_behind_the_last_dimension_fits_where_a_dimension_is_put_there():
    x = value("x", [3, 4])
    op = Builder(new_model([x], "g").graph)
    assert static_dims(op.Flatten(x, axis=2)) == (12, 1)
    with pytest.raises(GraphError, match="Flatten has the axis 3"):
        op.Flatten(x, axis=3)


@pytest.mark.parametrize("perm", [[0, 0], [1], [0, 2]])
def test_a_permutation_names_each_dimension_once(perm):
    x = value("x", [3, 4])
    op = Builder(new_model([x], "g").graph)
    with pytest.raises(GraphError, match="Transpose has the permutation"):
        op.Transpose(x, perm=perm)
