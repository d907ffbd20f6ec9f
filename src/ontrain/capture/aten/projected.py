"""An LSTM whose hidden state is projected: no operator of ONNX says it, so it is unrolled over a known length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ontrain.capture.aten.linear import transposed
from ontrain.capture.context import AtenBuilder
from ontrain.operators import Value, each

__all__ = ["projected_lstm"]


def projected_lstm(
    op: AtenBuilder, x: Value, states: Sequence[Any], directions: Sequence[Sequence[Any]], length: int,
    lengths: Value | None = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Append one layer over x [T, B, I], T being `length`.

    Args:
        op: where to append.
        x: the input.
        states: the first hidden states [D, B, P] and cells [D, B, H].
        directions: for each its weights as torch has them: w_ih, w_hh, b_ih and b_hh or neither, and w_hr [P, H].
        length: how many steps.
        lengths: of the sequences, int32 [B]; None where all have T steps.

    Returns:
        Y [T, D, B, P], zero behind each length, and the last hidden states and cells.
    """
    results = []
    there = None if lengths is None else [_there(op, t, lengths) for t in range(length)]
    for d, weights in enumerate(directions):
        first = [op.Squeeze(op.Slice(state, [d], [d + 1], [0]), [0]) for state in states]
        y, *last = _direction(op, x, first, weights, length, there, backwards=d == 1)
        results.append([op.Unsqueeze(y, [1]), *(op.Unsqueeze(state, [0]) for state in last)])
    ys, hs, cs = zip(*results, strict=True)
    return _stacked(op, ys, 1), _stacked(op, hs, 0), _stacked(op, cs, 0)


def _direction(
    op: AtenBuilder, x: Value, states: Sequence[Any], weights: Sequence[Any], length: int,
    there: Sequence[Value] | None, *, backwards: bool,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The outputs [T, B, P], and the last hidden state [B, P] and cell [B, H]; states stay where a step isn't there."""
    w_ih, w_hh, *biases, projection = weights
    h, c = states
    projected = op.MatMul(x, transposed(op, w_ih))
    for bias in biases:
        projected = projected + bias
    steps = each(op.Split(projected, axis=0, num_outputs=length, outputs=length)) if length > 1 else (projected,)
    rows: dict[int, Value] = {}
    for t in reversed(range(length)) if backwards else range(length):
        gates = op.Squeeze(steps[t], [0]) + op.MatMul(h, transposed(op, w_hh))
        i, f, g, o = op.Split(gates, axis=-1, num_outputs=4, outputs=4)
        cell = op.Sigmoid(f) * c + op.Sigmoid(i) * op.Tanh(g)
        hidden = op.MatMul(op.Sigmoid(o) * op.Tanh(cell), transposed(op, projection))
        row = hidden if there is None else op.Where(there[t], hidden, 0.0)
        h, c = (hidden, cell) if there is None else (op.Where(there[t], hidden, h), op.Where(there[t], cell, c))
        rows[t] = op.Unsqueeze(row, [0])
    return _stacked(op, [rows[t] for t in range(length)], 0), h, c


def _there(op: AtenBuilder, t: int, lengths: Value) -> Value:
    """Which sequences have a step: [B, 1]."""
    return op.Unsqueeze(op.Greater(lengths, t), [1])


def _stacked(op: AtenBuilder, parts: Sequence[Any], axis: int) -> Value:
    return op.Concat(*parts, axis=axis) if len(parts) > 1 else parts[0]
