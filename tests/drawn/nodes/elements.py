"""Functions of elements."""

from __future__ import annotations

import numpy as np

from tests.drawn.draw import Draw
from tests.drawn.nodes.node import Node, attributes, node

ACTIVATIONS = {
    "Shrink": dict(bias=0.2, lambd=0.5), "ThresholdedRelu": dict(alpha=0.3), "Celu": dict(alpha=1.7), "Selu": {},
    "HardSigmoid": dict(alpha=0.3, beta=0.4), "Mish": {},
}  # fmt: skip


@node
def activation(draw: Draw) -> Node:
    """With its settings."""
    op_type = draw.choice(list(ACTIVATIONS))
    return Node(op_type, [draw.array(3, 4)], ACTIVATIONS[op_type], opset=18)


@node
def remainder(draw: Draw) -> Node:
    """Mod of whole numbers with the divisor's sign, and of fractions with the dividend's."""
    if draw.flag():
        return Node("Mod", [draw.array(9) * 3, draw.array(9)], dict(fmod=1))
    return Node("Mod", [draw.indices(-9, 9, 9), draw.indices(1, 4, 9) * draw.choice([1, -1])], dict(fmod=0))


@node
def shift(draw: Draw) -> Node:
    """BitShift."""
    numbers, places = draw.indices(0, 9, 6), draw.indices(0, 4, 6)
    settings = dict(direction=draw.choice(["LEFT", "RIGHT"]))
    return Node("BitShift", [numbers.astype(np.uint32), places.astype(np.uint32)], settings)


@node
def clip(draw: Draw) -> Node:
    """With either bound, both or none."""
    return Node("Clip", [draw.array(6), draw.maybe(np.float32(-0.5)), draw.maybe(np.float32(0.3))], {})


@node
def where(draw: Draw) -> Node:
    """Of three shapes."""
    return Node("Where", [draw.indices(0, 2, (3, 1)).astype(bool), draw.array(1, 4), draw.array(3, 4)], {})


@node
def infinite(draw: Draw) -> Node:
    """IsInf of either sign."""
    settings = dict(detect_negative=draw.choice([0, 1]), detect_positive=draw.choice([0, 1]))
    return Node("IsInf", [np.array([np.inf, -np.inf, np.nan, 1], np.float32)], settings, opset=20)


@node
def quantisation(draw: Draw) -> Node:
    """QuantizeLinear by rows or by columns."""
    axis = draw.choice([0, 1])
    scale = np.array([0.1, 0.2, 0.05, 0.3][: 3 + axis], np.float32)
    zeros = np.array([1, 2, 3, 4][: 3 + axis], draw.choice([np.uint8, np.int8]))
    return Node("QuantizeLinear", [draw.array(3, 4) * 3, scale, zeros], attributes(axis=axis), opset=19)
