"""Attributes that contradict the sizes of operands, and windows wider than what they slide over."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ontrain import GraphError
from ontrain.graph import infer_node
from tests.graph.values import value


def inferred(op_type, *shapes, outputs=1, **attributes):
    inputs = [value(f"x{i}", list(shape)) for i, shape in enumerate(shapes)]
    stated = [ir.convenience.convert_attribute(name, setting) for name, setting in attributes.items()]
    return infer_node(ir.Node("", op_type, inputs, stated, num_outputs=outputs))


FITTING = [
    ("Conv", ((1, 2, 5, 5), (3, 2, 3, 3)), {"kernel_shape": [3, 3]}, {"kernel_shape": [2, 3]}),
    ("ConvTranspose", ((1, 2, 5, 5), (2, 3, 3, 3)), {"kernel_shape": [3, 3]}, {"kernel_shape": [3, 4]}),
    ("Attention", ((1, 2, 4, 8),) * 3, {"q_num_heads": 2, "kv_num_heads": 2}, {"q_num_heads": 4}),
    ("RotaryEmbedding", ((1, 2, 4, 8), (1, 4, 3), (1, 4, 3)), {"rotary_embedding_dim": 6}, {"rotary_embedding_dim": 4}),
    ("RotaryEmbedding", ((1, 4, 8), (1, 4, 2), (1, 4, 2)), {"num_heads": 2}, {"num_heads": 0}),
]


@pytest.mark.parametrize(("op_type", "shapes", "right", "wrong"), FITTING)
def test_what_an_attribute_says_of_an_operand_holds(op_type, shapes, right, wrong):
    assert inferred(op_type, *shapes, **right)
    (name,) = wrong
    with pytest.raises(GraphError, match=rf"(?s)the attributes of {op_type} do not fit.*{name}"):
        inferred(op_type, *shapes, **wrong)


def test_nothing_is_said_of_sizes_that_are_symbols():
    assert inferred("Attention", *((1, "heads", 4, 8),) * 3, q_num_heads=2, kv_num_heads=2)


@pytest.mark.parametrize("op_type", ["AveragePool", "MaxPool", "LpPool"])
def test_a_window_wider_than_an_image_is_refused(op_type):
    with pytest.raises(GraphError, match=rf"(?s)the result of {op_type} would have the size -4 along dimension 2"):
        inferred(op_type, (1, 2, 5, 5), kernel_shape=[10, 3])
