"""Recurrent layers step by step, in planned memory: for layers whose gradient nobody asks for.

oneDNN's kernel of a layer copies its weights into an order of its own at each call. For one sequence that costs more
than the steps, each of which is a matrix by a vector and a few calls on vectors. The two directions of one sequence
make their steps together: half as many calls, each on twice as much.

Legend: T time, B batch, I input, H hidden, D directions, G gates. Gates lie in ONNX's order, of an LSTM input, output,
forget, cell, and of a GRU update, reset, hidden. For one sequence the axis B is left out inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir
import torch

from ontrain.graph import static_dims
from ontrain.operators import directions_backwards, is_plain_layer
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers

__all__ = ["emit_steps"]

Tensor = torch.Tensor
_DTYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _times(before: Tensor, r: Tensor, h: Tensor, out: Tensor) -> None:
    """Write before + h · rᵀ, for a state [H] or states [B, H] and r [G·H, H], for a pair [D, H] and rᵀ [D, H, G·H]."""
    if r.dim() == 3:
        torch.baddbmm(before.unsqueeze(1), h.unsqueeze(1), r, out=out.unsqueeze(1))
    elif h.dim() == 1:
        torch.addmv(before, r, h, out=out)
    else:
        torch.addmm(before, h, r.t(), out=out)


def _steps(
    parts: Sequence[Tensor], y: Tensor, length: Tensor | None, reverse: bool
) -> Iterator[tuple[Tensor, ...]]:  # fmt: skip
    """Of each step, in the order in which they are made, its rows of tensors [T, …], and where it writes its state.

    Args:
        parts: what has a row for each step.
        y: [T, B, H]; zero for steps that are not made.
        length: how many steps are made, [1]; None for all.
        reverse: whether the last step is made first.
    """
    rows = [part.unbind(0) for part in (*parts, y)]
    if length is not None:
        count = max(0, min(len(y), int(length)))
        y[count:].zero_()
        rows = [row[:count] for row in rows]
    each = zip(*rows, strict=True)
    return reversed([*each]) if reverse else each


def _lstm(
    rows: Tensor, r: Tensor, first: Sequence[Tensor], y: Tensor, lasts: Sequence[Tensor], gates: Sequence[Tensor],
    shown: Tensor, length: Tensor | None, reverse: bool,
) -> None:  # fmt: skip
    (state, before), (last, cell) = first, lasts
    product, squashed, into, out, keep, new = gates
    cell.copy_(before)
    for row, target in _steps([rows], y, length, reverse):
        _times(row, r, state, product)
        squashed.sigmoid_()
        cell.mul_(keep).addcmul_(into, new.tanh_())
        state = torch.mul(out, torch.tanh(cell, out=shown), out=target)
    last.copy_(state)


def _gru(
    of_gates: Tensor, of_hidden: Tensor, r: Sequence[Tensor], bias: Tensor, first: Sequence[Tensor], y: Tensor,
    lasts: Sequence[Tensor], places: Sequence[Tensor], length: Tensor | None, reverse: bool, linear: bool,
) -> None:  # fmt: skip
    (state,), (whole, r_of_gates, r_of_hidden) = first, r
    product, gates, update, reset, hidden = places
    for row, own, target in _steps([of_gates, of_hidden], y, length, reverse):
        if linear:
            _times(bias, whole, state, product)
            gates.add_(row).sigmoid_()
            torch.addcmul(own, reset, hidden, out=hidden)
        else:
            _times(row, r_of_gates, state, gates)
            gates.sigmoid_()
            _times(own, r_of_hidden, reset.mul_(state), hidden)
        state = torch.lerp(hidden.tanh_(), state, update, out=target)
    lasts[0].copy_(state)


def _rnn(
    rows: Tensor, r: Tensor, first: Sequence[Tensor], y: Tensor, lasts: Sequence[Tensor], length: Tensor | None,
    reverse: bool,
) -> None:  # fmt: skip
    (state,) = first
    for row, target in _steps([rows], y, length, reverse):
        _times(row, r, state, target)
        state = target.tanh_()
    lasts[0].copy_(state)


def _fits(node: ir.Node) -> bool:
    """Whether a layer has nothing but gates and states, its sizes are known, and none of them is zero."""
    operands = [v for v in node.inputs[:3] if v is not None and v.shape is not None and v.shape.is_static()]
    if not node.inputs:
        return True  # the operator as such
    if len(operands) < 3 or operands[0].dtype not in _DTYPES or not is_plain_layer(node):
        return False
    directions = len(directions_backwards(attributes(node).get("direction", "forward")))
    return all(0 not in static_dims(value) for value in operands) and static_dims(operands[1])[0] == directions


@lowers("GRU", "LSTM", "RNN", when=_fits, devices=("cpu",))
def recurrent_layer(e: Emitter, node: ir.Node) -> None:
    x, w, r, bias, length, *states = (_operand(e, node, i) for i in range(7 if node.op_type == "LSTM" else 6))
    assert x is not None and w is not None and r is not None
    linear = bool(attributes(node).get("linear_before_reset", 0))
    emit_steps(e, node, node.op_type, x, w, r, bias, states, length, linear=linear)


def emit_steps(
    e: Emitter, node: ir.Node, kind: str, x: Buf, w: Buf, r: Buf, bias: Buf | None, states: Sequence[Buf | None],
    length: Buf | None = None, *, linear: bool = False,
) -> None:  # fmt: skip
    """Emit the steps of a layer.

    Args:
        e: what they are emitted with.
        node: whose results are Y [T, D, B, H] and the last states [D, B, H].
        kind: "GRU", "LSTM" or "RNN".
        x, w, r, bias: [T, B, I], [D, G·H, I], [D, G·H, H] and [D, 2·G·H].
        states: the first ones [D, B, H]; zeros for None.
        length: of the one sequence, [1]; None for T.
        linear: whether a GRU multiplies by the recurrent weight before it resets.
    """
    backwards = directions_backwards(attributes(node).get("direction", "forward"))
    (steps, batch), hidden, width = x.shape[:2], r.shape[2], r.shape[1]
    values = [*node.outputs, *[None] * (1 + len(states) - len(node.outputs))]
    shapes = [(steps, len(backwards), batch, hidden), *[(len(backwards), batch, hidden)] * len(states)]
    y, *lasts = (
        e.out(value) if value is not None and e.reads(value) else e.new(shape, x.dtype)
        for value, shape in zip(values, shapes, strict=False)
    )
    flat = e.reshape(x, (steps * batch, x.shape[2]))
    shared = width if kind != "GRU" or not linear else 2 * hidden
    if len(backwards) == 2 and batch == 1 and length is None:
        _emit_pair(e, kind, flat, w, r, bias, shared, states, y, lasts, linear)
        return
    for d, reverse in enumerate(backwards):
        of_w, of_r = _biases(e, bias, d, shared)
        rows = _projected(e, flat, e.view(e.select(w, 0, d), torch.t), of_w)
        projected = e.view(rows, lambda t: _alone(t.view(steps, batch, width), 1))
        first = [_first(e, state, d, (batch, hidden), x.dtype) for state in states]
        target = e.view(e.select(y, 1, d), lambda t: _alone(t, 1))
        finals = [e.view(e.select(last, 0, d), lambda t: _alone(t, 0)) for last in lasts]
        _emit(e, kind, projected, e.select(r, 0, d), of_r, first, target, finals, length, reverse, linear)


def _emit_pair(
    e: Emitter, kind: str, x: Buf, w: Buf, r: Buf, bias: Buf | None, shared: int, states: Sequence[Buf | None], y: Buf,
    lasts: Sequence[Buf], linear: bool,
) -> None:  # fmt: skip
    """Emit both directions of one sequence, the second on reversed rows."""
    (_, width, hidden), steps = r.shape, x.shape[0]
    rows, made = e.new((steps, 2, width), x.dtype), e.new((steps, 2, hidden), x.dtype)
    recurrent = None if bias is None else e.new((2, width), x.dtype)
    for d, turn in enumerate((_copy, _reverse)):
        of_w, of_r = _biases(e, bias, d, shared)
        target = e.select(rows, 1, d)
        e.run(turn, target, _projected(e, x, e.view(e.select(w, 0, d), torch.t), of_w), writes=[target])
        if recurrent is not None and of_r is not None:
            e.copy(of_r, e.select(recurrent, 0, d))
    fixed = e.unchanging(r)
    across = (
        e.contiguous(e.view(r, lambda t: t.transpose(1, 2))) if fixed is None
        else e.constant(e.weights(r).derived("across", [fixed], lambda: fixed.transpose(1, 2).contiguous()))
    )  # fmt: skip
    first = [_first_pair(e, state, hidden, x.dtype) for state in states]
    finals = [e.view(last, lambda t: t.squeeze(1)) for last in lasts]
    _emit(e, kind, rows, across, recurrent, first, made, finals, None, False, linear)
    for d, turn in enumerate((_copy, _reverse)):
        target = e.view(e.select(y, 1, d), lambda t: t.squeeze(1))
        e.run(turn, target, e.select(made, 1, d), writes=[target])


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)


def _reverse(target: Tensor, source: Tensor) -> None:
    target.copy_(source.flip(0))


def _first_pair(e: Emitter, state: Buf | None, hidden: int, dtype: torch.dtype) -> Buf:
    """The first states of both directions, [D, H]."""
    if state is not None:
        return e.view(state, lambda t: t.squeeze(1))
    zeros = e.new((2, hidden), dtype)
    e.run(Tensor.zero_, zeros, writes=[zeros])
    return zeros


def _emit(
    e: Emitter, kind: str, rows: Buf, r: Buf, bias: Buf | None, first: list[Buf], y: Buf, lasts: list[Buf],
    length: Buf | None, reverse: bool, linear: bool,
) -> None:  # fmt: skip
    hidden, before, width = y.shape[-1], y.shape[1:-1], rows.shape[-1]
    along = 0 if len(r.shape) == 2 else 2
    if kind == "RNN":
        e.run(_rnn, rows, r, first, y, lasts, length, reverse, writes=[y, *lasts])
        return

    def cut(buf: Buf, start: int, count: int) -> Buf:
        return e.narrow(buf, len(buf.shape) - 1, start * hidden, count * hidden)

    product = e.new((*before, width), y.dtype)
    if kind == "LSTM":
        shown = e.new((*before, hidden), y.dtype)
        gates = [product, cut(product, 0, 3), *(cut(product, i, 1) for i in range(4))]
        e.run(_lstm, rows, r, first, y, lasts, gates, shown, length, reverse, writes=[y, *lasts, product, shown])
        return
    added = e.new((width,) if along == 0 else (*before, width), y.dtype)
    e.run(Tensor.zero_, added, writes=[added])
    if bias is not None and linear:
        e.copy(cut(bias, 2, 1), cut(added, 2, 1))
    factors = [r, e.narrow(r, along, 0, 2 * hidden), e.narrow(r, along, 2 * hidden, hidden)]
    places = [product, cut(product, 0, 2), *(cut(product, i, 1) for i in range(3))]
    e.run(
        _gru, cut(rows, 0, 2), cut(rows, 2, 1), factors, added, first, y, lasts, places, length, reverse, linear,
        writes=[y, *lasts, product],
    )  # fmt: skip


def _alone(tensor: Tensor, axis: int) -> Tensor:
    """The tensor without its axis of sequences where there is one of them."""
    return tensor.squeeze(axis) if tensor.shape[axis] == 1 else tensor


def _biases(e: Emitter, bias: Buf | None, d: int, shared: int) -> tuple[Buf | None, Buf | None]:
    """Of a direction what is added to the projected input, and the recurrent bias.

    Args:
        e, bias, d: the emitter, the layer's bias, the direction.
        shared: how many places of the recurrent bias are added together with the input's.
    """
    if bias is None:
        return None, None
    own = e.select(bias, 0, d)
    width = own.shape[0] // 2
    of_w, of_r = e.narrow(own, 0, 0, width), e.narrow(own, 0, width, width)
    both = e.new((width,), bias.dtype)
    e.call(torch.add, e.narrow(of_w, 0, 0, shared), e.narrow(of_r, 0, 0, shared), out=e.narrow(both, 0, 0, shared))
    if shared < width:
        e.copy(e.narrow(of_w, 0, shared, width - shared), e.narrow(both, 0, shared, width - shared))
    return both, of_r


def _projected(e: Emitter, x: Buf, w: Buf, bias: Buf | None) -> Buf:
    rows = e.new((x.shape[0], w.shape[1]), x.dtype)
    if bias is None:
        return e.call(torch.mm, x, w, out=rows)
    return e.call(torch.addmm, bias, x, w, out=rows)


def _first(e: Emitter, state: Buf | None, d: int, shape: tuple[int, int], dtype: torch.dtype) -> Buf:
    """A direction's first state [B, H]."""
    if state is not None:
        return e.view(e.select(state, 0, d), lambda t: _alone(t, 0))
    zeros = e.new(shape, dtype)
    e.run(Tensor.zero_, zeros, writes=[zeros])
    return e.view(zeros, lambda t: _alone(t, 0))


def _operand(e: Emitter, node: ir.Node, index: int) -> Buf | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else e.value(value)
