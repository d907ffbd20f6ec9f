"""A layer of long short-term memory without peepholes or clipping, and its gradient, as loops over time.

Legend: T time, B batch, I input, H hidden, D directions. Gates lie in ONNX's order "iofc", input, output, forget, cell;
those of weights and biases also in PyTorch's, "ifco", if `order` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder, repeat, static_dims
from ontrain.operators import Value, as_before, directions_backwards, unrounded

__all__: list[str] = []

Types = list[tuple[ir.DataType, ir.Shape]]


def _types(inputs: Sequence[Any], **_: object) -> Types:
    x, r = inputs[0], inputs[2]
    time, batch = list(x.shape)[:2]
    directions, _, hidden = list(r.shape)
    state = ir.Shape([directions, batch, hidden])
    steps = [time, directions, batch]
    return [
        (x.dtype, ir.Shape([*steps, hidden])), (x.dtype, state), (x.dtype, state),
        (x.dtype, ir.Shape([*steps, 4 * hidden])), (x.dtype, ir.Shape([*steps, hidden])),
    ]  # fmt: skip


@composite("LstmLayer", infer=_types)
def lstm_layer(
    op: Builder, x: Value, w: Value, r: Value, bias: Value | None = None, h: Value | None = None,
    c: Value | None = None, *, direction: str = "forward", order: str = "iofc",
) -> tuple[Value, ...]:  # fmt: skip
    """The operator LSTM with its own activations, and what its gradient reads.

    x [T, B, I], w [D, 4·H, I], r [D, 4·H, H], bias [D, 8·H], the first states h and c [D, B, H]. Gives Y [T, D, B, H],
    the last states [D, B, H], and of all steps the gates behind their activations [T, D, B, 4·H] and the cells
    [T, D, B, H]. Source: the operator LSTM (version 22).
    """
    w, r = _standard(op, w, order), _standard(op, r, order)
    bias = None if bias is None else _standard(op, bias, order)
    stacked: list[list[Value]] = []
    for d, backwards in enumerate(directions_backwards(direction)):
        projected = unrounded(op, op.MatMul(x, _transposed(op, w, d)))
        if bias is not None:
            of_w, of_r = op.Split(_of(op, bias, d), axis=0, num_outputs=2, outputs=2)
            projected = projected + (unrounded(op, of_w) + unrounded(op, of_r))
        last, rows = repeat(
            op, _step, trip=static_dims(x)[0], scanned=[projected],
            carried=[_state(op, h, d, x, r), unrounded(op, _state(op, c, d, x, r))],
            captured=[_transposed(op, r, d)], reverse=backwards,
        )  # fmt: skip
        y, gates, cells = (op.Unsqueeze(row, [1]) for row in rows)
        stacked.append([y, *(op.Unsqueeze(as_before(op, state, x), [0]) for state in last), gates, cells])
    return _joined(op, stacked, axes=(1, 0, 0, 1, 1))


def _step(
    op: Builder, at: Value, states: Sequence[Any], rows: Sequence[Any], captured: Sequence[Any]
) -> tuple[None, list[Value], list[Value]]:
    h, c = states
    projected = rows[0] + unrounded(op, op.MatMul(h, captured[0]))
    i, o, f, g = op.Split(projected, axis=-1, num_outputs=4, outputs=4)
    i, o, f, g = op.Sigmoid(i), op.Sigmoid(o), op.Sigmoid(f), op.Tanh(g)
    c = f * c + i * g
    y, gates, cell = (as_before(op, v, h) for v in (o * op.Tanh(c), op.Concat(i, o, f, g, axis=-1), c))
    return None, [y, c], [y, gates, cell]


def _grad_types(inputs: Sequence[Any], **_: object) -> Types:
    x, w, r = inputs[:3]
    directions, _, hidden = list(r.shape)
    state = ir.Shape([directions, list(x.shape)[1], hidden])
    return [
        (x.dtype, x.shape), (x.dtype, w.shape), (x.dtype, r.shape), (x.dtype, ir.Shape([directions, 8 * hidden])),
        (x.dtype, state), (x.dtype, state),
    ]  # fmt: skip


@composite("LstmLayerGrad", infer=_grad_types)
def lstm_layer_grad(
    op: Builder, x: Value, w: Value, r: Value, h: Value | None, c: Value | None, y: Value, gates: Value, cells: Value,
    dy: Value | None = None, dh: Value | None = None, dc: Value | None = None, *, direction: str = "forward",
    order: str = "iofc",
) -> tuple[Value, ...]:  # fmt: skip
    """The adjoints of LstmLayer's x, w, r, bias, h and c, from its results and the adjoints of the first three.

    Source: Hochreiter and Schmidhuber, Long short-term memory, 1997, with the forget gate of Gers et al., 2000.
    """
    w, r = _standard(op, w, order), _standard(op, r, order)
    dxs, stacked = [], []
    for d, backwards in enumerate(directions_backwards(direction)):
        first, second = (_state(op, v, d, x, r) for v in (h, c))
        before = _shifted(op, _of(op, y, d, axis=1), first, backwards)
        cell = _of(op, cells, d, axis=1)
        adjoint = _zeros_like(op, cell) if dy is None else _of(op, dy, d, axis=1)
        (dfirst, dsecond), (dz,) = repeat(
            op, _step_back, trip=static_dims(x)[0], carried=[unrounded(op, _state(op, v, d, x, r)) for v in (dh, dc)],
            scanned=[adjoint, _of(op, gates, d, axis=1), cell, _shifted(op, cell, second, backwards)],
            captured=[_of(op, r, d)], reverse=not backwards,
        )  # fmt: skip
        dxs.append(op.MatMul(dz, _of(op, w, d)))
        rows = op.Transpose(_rows(op, dz), perm=[1, 0])
        db = op.ReduceSum(dz, [0, 1], keepdims=0)
        parts = (op.MatMul(rows, _rows(op, x)), op.MatMul(rows, _rows(op, before)), op.Concat(db, db, axis=0))
        stacked.append([op.Unsqueeze(as_before(op, part, x), [0]) for part in (*parts, dfirst, dsecond)])
    dx = dxs[0] if len(dxs) == 1 else dxs[0] + dxs[1]
    dw, dr, db, *first_adjoints = _joined(op, stacked, axes=(0,) * 5)
    return dx, *(_stored(op, adjoint, order) for adjoint in (dw, dr, db)), *first_adjoints


def _step_back(
    op: Builder, at: Value, states: Sequence[Any], rows: Sequence[Any], captured: Sequence[Any]
) -> tuple[None, list[Value], list[Value]]:
    dh, dc = states
    dy, gates, cell, before = (unrounded(op, row) for row in rows)
    i, o, f, g = op.Split(gates, axis=-1, num_outputs=4, outputs=4)
    dh, t = dh + dy, op.Tanh(cell)
    dc = dc + dh * o * (1 - t * t)
    dz = op.Concat(
        dc * g * (i * (1 - i)), dh * t * (o * (1 - o)), dc * before * (f * (1 - f)), dc * i * (1 - g * g), axis=-1
    )
    dz = as_before(op, dz, captured[0])
    return None, [unrounded(op, op.MatMul(dz, captured[0])), dc * f], [dz]


def _standard(op: Builder, gates: Value, order: str) -> Value:
    """Weights or biases [D, n·4·H, …] in ONNX's order, from the order they lie in."""
    return gates if order == "iofc" else _permuted(op, gates, (0, 3, 1, 2))


def _stored(op: Builder, gates: Value, order: str) -> Value:
    """Their adjoints in that order, from ONNX's."""
    return gates if order == "iofc" else _permuted(op, gates, (0, 2, 3, 1))


def _permuted(op: Builder, gates: Value, places: Sequence[int]) -> Value:
    """Each four gates along axis 1 in another order; a bias has eight."""
    count = 8 if len(static_dims(gates)) == 2 else 4
    parts: Any = op.Split(gates, axis=1, num_outputs=count, outputs=count)
    return op.Concat(*(parts[start + place] for start in range(0, count, 4) for place in places), axis=1)


def _of(op: Builder, value: Any, d: int, axis: int = 0) -> Any:
    """One direction's share."""
    if static_dims(value)[axis] > 1:
        value = op.Slice(value, [d], [d + 1], [axis])
    return op.Squeeze(value, [axis])


def _transposed(op: Builder, weights: Value, d: int) -> Value:
    return op.Transpose(_of(op, weights, d), perm=[1, 0])


def _state(op: Builder, states: Value | None, d: int, x: Value, r: Value) -> Any:
    """A direction's state [B, H]; zeros for none."""
    if states is not None:
        return _of(op, states, d)
    return op.const(np.zeros((static_dims(x)[1], static_dims(r)[2]), x.dtype.numpy()))


def _zeros_like(op: Builder, value: Value) -> Value:
    return op.const(np.zeros(static_dims(value), value.dtype.numpy()))


def _shifted(op: Builder, rows: Any, first: Value, backwards: bool) -> Any:
    """What the steps find [T, B, H]: the first state, then what the steps before them left."""
    time, first = static_dims(rows)[0], op.Unsqueeze(first, [0])
    if backwards:
        return op.Concat(op.Slice(rows, [1], [time], [0]), first, axis=0)
    return op.Concat(first, op.Slice(rows, [0], [time - 1], [0]), axis=0)


def _rows(op: Builder, value: Value) -> Value:
    """[T, B, n] as a matrix."""
    return op.Reshape(value, [-1, static_dims(value)[-1]])


def _joined(op: Builder, directions: Sequence[Sequence[Value]], axes: Sequence[int]) -> tuple[Value, ...]:
    """Each result of all directions, along its axis of directions."""
    results = zip(*directions, strict=True)
    return tuple(
        op.Concat(*parts, axis=axis) if len(parts) > 1 else parts[0] for parts, axis in zip(results, axes, strict=True)
    )
