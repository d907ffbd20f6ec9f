"""LSTM, GRU and RNN."""

from __future__ import annotations

import numpy as np

from tests.drawn.draw import Draw
from tests.drawn.nodes.node import Node, attributes, node

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
HIDDEN = 3


@node.share(4)
def recurrence(draw: Draw) -> Node:
    """In each direction, with lengths, first states and peepholes."""
    op_type = draw.choice(list(GATES))
    direction = draw.choice(["forward", "reverse", "bidirectional"])
    ways = 2 if direction == "bidirectional" else 1
    length, batch = draw.integer(1, 4), draw.integer(1, 3)
    settings = attributes(
        hidden_size=HIDDEN, direction=direction, clip=draw.maybe(0.8, 0.3), layout=0,
        linear_before_reset=draw.choice([0, 1]) if op_type == "GRU" else None,
        input_forget=draw.maybe(1, 0.3) if op_type == "LSTM" else None,
    )  # fmt: skip
    inputs = [
        draw.array(length, batch, 2),
        *_weights(draw, ways, GATES[op_type] * HIDDEN),
        draw.maybe(draw.indices(1, length + 1, batch).astype(np.int32)),
        draw.maybe(draw.array(ways, batch, HIDDEN)),
    ]
    if op_type == "LSTM":
        inputs += [draw.maybe(draw.array(ways, batch, HIDDEN)), draw.maybe(draw.array(ways, 3 * HIDDEN))]
    return Node(op_type, inputs, settings, 3 if op_type == "LSTM" else 2, opset=14)


def _weights(draw: Draw, ways: int, rows: int) -> list[np.ndarray | None]:
    """Of inputs and of states, and biases."""
    return [draw.array(ways, rows, 2), draw.array(ways, rows, HIDDEN), draw.maybe(draw.array(ways, 2 * rows))]
