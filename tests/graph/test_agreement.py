"""Dimensions that must agree for an operator to run: those that numpy refuses, and no others."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, strategies as st

from ontrain.graph.agreement import agreeing_dims
from tests.graph.values import value

SHAPES = st.lists(st.integers(1, 3), max_size=3)


def disagreeing(op_type, *shapes, domain="", **attributes):
    inputs = [value(f"x{i}", shape) for i, shape in enumerate(shapes)]
    attrs = [ir.convenience.convert_attribute(name, attribute) for name, attribute in attributes.items()]
    return agreeing_dims(ir.Node(domain, op_type, inputs, attrs), inputs)


@given(SHAPES, SHAPES)
def test_operands_of_arithmetic_disagree_where_numpy_does_not_broadcast_them(a, b):
    try:
        np.broadcast_shapes(tuple(a), tuple(b))
        fits = True
    except ValueError:
        fits = False
    assert (not disagreeing("Add", a, b)) == (not disagreeing("BitwiseXor", a, b)) == fits


@pytest.mark.parametrize(
    ("op_type", "shapes", "attributes", "pairs"),
    [
        ("MatMul", ([2, 3], [4, 5]), {}, [(3, 4)]),
        ("MatMul", ([7, 2, 3], [6, 3, 5]), {}, [(7, 6)]),
        ("Gemm", ([3, 2], [3, 4], [5]), {"transA": 1}, [(4, 5)]),
        ("Conv", ([1, 4, 8, 8], [6, 3, 3, 3]), {}, [(4, 3)]),
        ("Conv", ([1, 4, 8, 8], [6, 2, 3, 3]), {"group": 2}, []),
        ("BatchNormalization", ([1, 4, 8], [4], [3], [4], [4]), {}, [(4, 3)]),
        ("Concat", ([2, 3], [2, 4]), {"axis": 1}, []),
        ("Concat", ([2, 3], [5, 4]), {"axis": 1}, [(2, 5)]),
        ("Einsum", ([2, 3], [4, 5]), {"equation": "ij,jk->ik"}, [(4, 3)]),
        ("SoftmaxCrossEntropyLoss", ([6, 4], [5]), {}, [(6, 5)]),
        ("Softmax", ([6, 4],), {}, []),
    ],
)
def test_pairs_are_of_dimensions_that_meet_in_the_operator(op_type, shapes, attributes, pairs):
    assert disagreeing(op_type, *shapes, **attributes) == pairs


def test_of_an_operator_that_nobody_described_nothing_is_asked():
    assert disagreeing("Add", [2], [3], domain="somebodys") == []
