"""Recurrent layers, unrolled over a time axis of known length.

torch's own decomposition of these operators leaves out the dropout between layers, so they are translated here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ontrain.capture.aten.linear import transposed
from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder

__all__: list[str] = []

State = tuple[Any, ...]
Cell = Callable[[AtenBuilder, Any, Any, State], State]
"""(projected input, projected hidden state, state) to the next state; its first member is the hidden state."""


def _lstm_cell(op: AtenBuilder, x: Any, h: Any, state: State) -> State:
    i, f, g, o = op.Split(x + h, axis=-1, num_outputs=4, outputs=4)
    c = op.Sigmoid(f) * state[1] + op.Sigmoid(i) * op.Tanh(g)
    return op.Sigmoid(o) * op.Tanh(c), c


def _gru_cell(op: AtenBuilder, x: Any, h: Any, state: State) -> State:
    xr, xz, xn = op.Split(x, axis=-1, num_outputs=3, outputs=3)
    hr, hz, hn = op.Split(h, axis=-1, num_outputs=3, outputs=3)
    z = op.Sigmoid(xz + hz)
    n = op.Tanh(xn + op.Sigmoid(xr + hr) * hn)
    return ((state[0] - n) * z + n,)


def _tanh_cell(op: AtenBuilder, x: Any, h: Any, state: State) -> State:
    return (op.Tanh(x + h),)


def _relu_cell(op: AtenBuilder, x: Any, h: Any, state: State) -> State:
    return (op.Relu(x + h),)


def _direction(
    op: AtenBuilder, cell: Cell, x: Any, state: State, weights: Sequence[Any], length: int, backwards: bool
) -> tuple[Any, State]:
    """Run one layer in one direction over x [T, B, in]; return its outputs [T, B, H] and last state [B, H] each."""
    w_ih, w_hh, *biases = weights
    # The output projection of an LSTM with proj_size comes last.
    projection = biases.pop() if len(biases) % 2 else None
    projected = op.MatMul(x, transposed(op, w_ih))
    if biases:
        projected = projected + biases[0]
    steps = op.Split(projected, axis=0, num_outputs=length, outputs=length) if length > 1 else (projected,)
    order = range(length - 1, -1, -1) if backwards else range(length)
    outputs: dict[int, Any] = {}
    for t in order:
        h = op.MatMul(state[0], transposed(op, w_hh))
        state = cell(op, op.Squeeze(steps[t], [0]), h + biases[1] if biases else h, state)
        if projection is not None:
            state = (op.MatMul(state[0], transposed(op, projection)), *state[1:])
        outputs[t] = op.Unsqueeze(state[0], [0])
    rows = [outputs[t] for t in range(length)]
    return (op.Concat(*rows, axis=0) if length > 1 else rows[0]), state


def _recurrent(
    op: AtenBuilder, cell: Cell, x: Any, initial: Sequence[Any], params: Sequence[Any], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Any, ...]:  # fmt: skip
    length = op.input_shape(0)[1 if batch_first else 0]
    directions = 2 if bidirectional else 1
    per = len(params) // (num_layers * directions)
    if not isinstance(length, int):
        raise op.refuse(
            "a recurrent layer over a length that varies", "it is unrolled, one step of the graph a step of time",
            "leave the time dimension out of `dynamic`",
        )  # fmt: skip
    x = op.Transpose(x, perm=[1, 0, 2]) if batch_first else x
    last: list[State] = []
    for layer in range(num_layers):
        made = []
        for direction in range(directions):
            k = layer * directions + direction
            state = tuple(op.Squeeze(op.Slice(s, [k], [k + 1], [0]), [0]) for s in initial)
            weights = params[k * per : (k + 1) * per]
            y, state = _direction(op, cell, x, state, weights, length, backwards=direction == 1)
            made.append(y)
            last.append(state)
        x = made[0] if directions == 1 else op.Concat(*made, axis=-1)
        if dropout and train and layer < num_layers - 1:
            x, _ = op.Dropout(x, op.const(float(dropout)), op.const(True), outputs=2)
    finals = [[op.Unsqueeze(one, [0]) for one in states] for states in zip(*last, strict=True)]
    stacked = [op.Concat(*one, axis=0) if len(one) > 1 else one[0] for one in finals]
    return (op.Transpose(x, perm=[1, 0, 2]) if batch_first else x, *stacked)


@aten("lstm.input")
def lstm(op: AtenBuilder, x: Any, hx: Sequence[Any], params: Sequence[Any], *options: Any) -> Any:
    return _recurrent(op, _lstm_cell, x, hx, params, *options)


def _plain(cell: Cell) -> Callable[..., Any]:
    def translate(op: AtenBuilder, x: Any, hx: Any, params: Sequence[Any], *options: Any) -> Any:
        return _recurrent(op, cell, x, [hx], params, *options)

    return translate


for _name, _cell in (("gru.input", _gru_cell), ("rnn_tanh.input", _tanh_cell), ("rnn_relu.input", _relu_cell)):
    aten(_name)(_plain(_cell))


@aten("lstm.data", "gru.data", "rnn_tanh.data", "rnn_relu.data")
def packed(op: AtenBuilder, *_: Any) -> Any:
    raise op.refuse(
        "a recurrent layer over a packed sequence", "the packing depends on the data",
        "feed padded sequences and mask the loss",
    )  # fmt: skip
