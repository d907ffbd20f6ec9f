"""Blocks divide what they cut up, without a rest."""

from __future__ import annotations

import pytest

from ontrain import GraphError
from ontrain.graph import Builder, new_model, static_dims
from tests.graph.values import value


@pytest.mark.parametrize(
    ("op_type", "shape", "result"),
    [("DepthToSpace", [1, 8, 2, 3], (1, 2, 4, 6)), ("SpaceToDepth", [1, 2, 4, 6], (1, 8, 2, 3))],
)
def test_blocks_that_fit_are_cut(op_type, shape, result):
    x = value("x", shape)
    assert static_dims(getattr(Builder(new_model([x], "g").graph), op_type)(x, blocksize=2)) == result


@pytest.mark.parametrize(
    ("op_type", "shape", "message"),
    [
        ("DepthToSpace", [1, 6, 2, 3], "dimension 1, of size 6, into parts of 4"),
        ("SpaceToDepth", [1, 2, 4, 5], "dimension 3, of size 5, into parts of 2"),
        ("SpaceToDepth", [1, 2, 3, 4], "dimension 2, of size 3, into parts of 2"),
    ],
)
def test_what_would_be_left_over_is_refused(op_type, shape, message):
    x = value("x", shape)
    with pytest.raises(GraphError, match=message):
        getattr(Builder(new_model([x], "g").graph), op_type)(x, blocksize=2)
