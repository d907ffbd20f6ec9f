"""Recurrent layers step by step, in planned memory: for layers whose gradient nobody asks for.

A layer with lengths, peepholes, bounds or other activations is one call of onnxruntime's kernel, and so is an LSTM
that comes here; see recurrent.py for all others.

Legend: T time, B batch, I input, H hidden, D directions, G gates. A GRU's gates are update, reset, hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import onnx_ir as ir
import torch

from ontrain.graph import static_dims
from ontrain.operators import directions_backwards, has_stock_kernel, is_plain_layer, operand_of
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.recurrent_kernels import suits_kernel
from ontrain.providers.torch.lowering.registry import attributes, lowers
from ontrain.providers.torch.lowering.stock_calls import emit_stock

__all__: list[str] = []

Tensor = torch.Tensor
_DTYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _steps(parts: Sequence[Tensor], reverse: bool) -> Iterator[tuple[Tensor, ...]]:
    """Of each step, in the order in which they are made, its rows of tensors [T, …]."""
    each = zip(*(part.unbind(0) for part in parts), strict=True)
    return reversed([*each]) if reverse else each


def _gru(
    of_gates: Tensor, of_hidden: Tensor, r: Sequence[Tensor], bias: Tensor, state: Tensor, y: Tensor,
    last: Tensor, places: Sequence[Tensor], reverse: bool, linear: bool,
) -> None:  # fmt: skip
    whole, r_of_gates, r_of_hidden = r
    product, gates, update, reset, hidden = places
    for row, own, target in _steps([of_gates, of_hidden, y], reverse):
        if linear:
            torch.addmm(bias, state, whole, out=product)
            gates.add_(row).sigmoid_()
            torch.addcmul(own, reset, hidden, out=hidden)
        else:
            torch.addmm(row, state, r_of_gates, out=gates)
            gates.sigmoid_()
            torch.addmm(own, reset.mul_(state), r_of_hidden, out=hidden)
        state = torch.lerp(hidden.tanh_(), state, update, out=target)
    last.copy_(state)


def _rnn(rows: Tensor, r: Tensor, state: Tensor, y: Tensor, last: Tensor, reverse: bool) -> None:
    for row, target in _steps([rows, y], reverse):
        torch.addmm(row, state, r, out=target)
        state = target.tanh_()
    last.copy_(state)


def _fits(node: ir.Node) -> bool:
    """Whether a layer has nothing but gates and states, its sizes are known, and none of them is zero."""
    operands = [v for v in node.inputs[:3] if v is not None and v.shape is not None and v.shape.is_static()]
    if not node.inputs:
        return True  # the operator as such
    if len(operands) < 3 or operands[0].dtype not in _DTYPES:
        return False
    if not is_plain_layer(node) and not has_stock_kernel(node):
        return False
    if _is_whole(node) and operands[0].dtype != ir.DataType.FLOAT:
        return False
    directions = len(directions_backwards(attributes(node).get("direction", "forward")))
    return all(0 not in static_dims(value) for value in operands) and static_dims(operands[1])[0] == directions


def _is_whole(node: ir.Node) -> bool:
    """Whether a layer is for onnxruntime's kernel, however large."""
    return node.op_type == "LSTM" or operand_of(node, 4) is not None or not is_plain_layer(node)


@lowers("GRU", "LSTM", "RNN", when=_fits, devices=("cpu",))
def recurrent_layer(e: Emitter, node: ir.Node) -> None:
    x, w, r, bias, _, state, _, _ = operands = [_operand(e, node, i) for i in range(8)]
    assert x is not None and w is not None and r is not None
    stated = attributes(node)
    if _is_whole(node) or suits_kernel(node.op_type, x, r):
        emit_stock(e, node.op_type, operands[: len(node.inputs)], node.outputs, {**stated, "hidden_size": r.shape[2]})
        return
    backwards = directions_backwards(stated.get("direction", "forward"))
    linear = bool(stated.get("linear_before_reset", 0))
    (steps, batch), hidden, width = x.shape[:2], r.shape[2], r.shape[1]
    shapes = [(steps, len(backwards), batch, hidden), (len(backwards), batch, hidden)]
    y, last = (
        e.out(value) if value is not None and e.reads(value) else e.new(shape, x.dtype)
        for value, shape in zip_longest(node.outputs, shapes)
    )
    flat = e.reshape(x, (steps * batch, x.shape[2]))
    shared = width if node.op_type != "GRU" or not linear else 2 * hidden
    for d, reverse in enumerate(backwards):
        of_w, of_r = _biases(e, bias, d, shared)
        rows = _projected(e, flat, e.view(e.select(w, 0, d), torch.t), of_w)
        projected = e.view(rows, lambda t: t.view(steps, batch, width))
        first, factor = _first(e, state, d, (batch, hidden), x.dtype), e.view(e.select(r, 0, d), torch.t)
        outs = e.select(y, 1, d), e.select(last, 0, d)
        _emit(e, node.op_type, projected, factor, of_r, first, *outs, reverse, linear)


def _emit(
    e: Emitter, kind: str, rows: Buf, r: Buf, bias: Buf | None, first: Buf, y: Buf, last: Buf,
    reverse: bool, linear: bool,
) -> None:  # fmt: skip
    """Emit the steps of a direction.

    Args:
        e, kind: the emitter and the operator.
        rows: the projected input [T, B, G·H].
        r, bias: the recurrent weight [H, G·H] and bias [G·H].
        first, y, last: the first states [B, H], all states [T, B, H], the last ones [B, H].
        reverse: whether the last step is made first.
        linear: whether a GRU multiplies by the recurrent weight before it resets.
    """
    (batch, hidden), width = y.shape[1:], rows.shape[-1]
    if kind == "RNN":
        e.run(_rnn, rows, r, first, y, last, reverse, writes=[y, last])
        return

    def cut(buf: Buf, start: int, count: int) -> Buf:
        return e.narrow(buf, len(buf.shape) - 1, start * hidden, count * hidden)

    product = e.new((batch, width), y.dtype)
    added = e.new((width,), y.dtype)
    e.run(Tensor.zero_, added, writes=[added])
    if bias is not None and linear:
        e.copy(cut(bias, 2, 1), cut(added, 2, 1))
    factors = [r, cut(r, 0, 2), cut(r, 2, 1)]
    places = [product, cut(product, 0, 2), *(cut(product, i, 1) for i in range(3))]
    e.run(
        _gru, cut(rows, 0, 2), cut(rows, 2, 1), factors, added, first, y, last, places, reverse, linear,
        writes=[y, last, product],
    )  # fmt: skip


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
        return e.select(state, 0, d)
    zeros = e.new(shape, dtype)
    e.run(Tensor.zero_, zeros, writes=[zeros])
    return zeros


def _operand(e: Emitter, node: ir.Node, index: int) -> Buf | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else e.value(value)
