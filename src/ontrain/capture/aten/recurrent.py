"""Recurrent layers: one LSTM, GRU or RNN of ONNX for each layer of torch's, so that batch and length may vary.

Legend: T time, B batch, I input, H hidden, D directions, G gates. torch's own decomposition of these operators leaves
out the dropout between layers and fixes the length, so they are translated here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import onnx_ir as ir

from ontrain.capture.aten.precision import Translation, in_single
from ontrain.capture.aten.projected import projected_lstm
from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder, repeated_constant
from ontrain.graph import static_dims
from ontrain.operators import Value, each

__all__: list[str] = []


@dataclass(frozen=True)
class _Kind:
    """How ONNX's operator says what torch's computes.

    Attributes:
        op_type: ONNX's name of the operator.
        parts: the pieces, in units of H, into which the G·H rows of torch's weights are cut.
        order: those pieces as ONNX orders them.
        activation: of one direction; None for the operator's own.
        linear_before_reset: ONNX's attribute of GRU.
    """

    op_type: str
    parts: tuple[int, ...] = (1,)
    order: tuple[int, ...] = (0,)
    activation: str | None = None
    linear_before_reset: int | None = None


# Gates i, f, g, o as i, o, f, c: f and g stay together.
_LSTM = _Kind("LSTM", (1, 2, 1), (0, 2, 1))
# Gates r, z, n as z, r, h. torch resets the product with the hidden state, ONNX by default the state before it.
_GRU = _Kind("GRU", (1, 1, 1), (1, 0, 2), linear_before_reset=1)
_TANH = _Kind("RNN")
_RELU = _Kind("RNN", activation="Relu")


def _layer(
    op: AtenBuilder, kind: _Kind, x: Value, lengths: Value | None, states: Sequence[Any],
    directions: Sequence[Sequence[Any]],
) -> tuple[Any, ...]:  # fmt: skip
    """Append one layer over x [T, B, I].

    Args:
        op: where to append.
        kind: which operator.
        x: the input.
        lengths: of the sequences, int32 [B]; None where all have T steps.
        states: the first states, each [D, B, H] or None for zeros.
        directions: for each its weights as torch has them: w_ih [G·H, I], w_hh [G·H, H], b_ih and b_hh or neither.

    Returns:
        Y [T, D, B, H] and the last of each state [D, B, H].
    """
    count, hidden = len(directions), directions[0][1].shape[1]
    w, r = (_arranged(op, kind, [[weights[i]] for weights in directions]) for i in range(2))
    bias = _arranged(op, kind, [weights[2:] for weights in directions]) if len(directions[0]) > 2 else None
    attributes = {
        "hidden_size": hidden,
        "direction": "bidirectional" if count > 1 else None,
        "activations": [kind.activation] * count if kind.activation else None,
        "linear_before_reset": kind.linear_before_reset,
    }
    return each(op.call("", kind.op_type, [x, w, r, bias, lengths, *states], attributes, outputs=1 + len(states)))


def _arranged(op: AtenBuilder, kind: _Kind, directions: Sequence[Sequence[Any]]) -> Value:
    """The weights or biases of each direction with ONNX's order of gates, as [D, …]: one copy, and one for gradients.

    A direction's biases lie one after the other in ONNX.
    """

    def make() -> Value:
        parts = [part for group in directions for weight in group for part in _gates(op, kind, weight)]
        joined = op.Concat(*parts, axis=0) if len(parts) > 1 else parts[0]
        if len(directions) == 1:
            return op.Unsqueeze(joined, [0])
        return op.Reshape(joined, [len(directions), -1, *list(directions[0][0].shape)[1:]])

    # A layer that is called again, as in a decoder's loop, reads the same.
    return op.memo(("arranged", kind, *(weight for group in directions for weight in group)), make)


def _gates(op: AtenBuilder, kind: _Kind, weight: Value) -> list[Any]:
    if len(kind.parts) == 1:
        return [weight]
    hidden = static_dims(weight)[0] // sum(kind.parts)
    parts = each(op.Split(weight, [hidden * part for part in kind.parts], axis=0, outputs=len(kind.parts)))
    return [parts[i] for i in kind.order]


def _recurrent(
    op: AtenBuilder, kind: _Kind, x: Value, initial: Sequence[Any], params: Sequence[Any], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool, *,
    lengths: Value | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    count = 2 if bidirectional else 1
    per = len(params) // (num_layers * count)
    # The projection of an LSTM with proj_size comes last.
    length = _known_length(op, batch_first, 0 if lengths is None else 1) if per % 2 else None
    if length is None:
        initial = [None if _is_zero(state) else state for state in initial]
    x = op.Transpose(x, perm=[1, 0, 2]) if batch_first else x
    last = []
    for layer in range(num_layers):
        at = layer * count
        states = [s if s is None or num_layers == 1 else op.Slice(s, [at], [at + count], [0]) for s in initial]
        directions = [params[k * per : (k + 1) * per] for k in range(at, at + count)]
        if length is None:
            y, *finals = _layer(op, kind, x, lengths, states, directions)
        else:
            y, *finals = projected_lstm(op, x, states, directions, length, lengths)
        last.append(finals)
        # [T, D, B, H] as torch has it.
        x = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, -1]) if bidirectional else op.Squeeze(y, [1])
        if dropout and train and layer < num_layers - 1:
            x, _ = op.Dropout(x, op.const(float(dropout)), op.const(True), outputs=2)
    stacked = [op.Concat(*states, axis=0) if len(states) > 1 else states[0] for states in zip(*last, strict=True)]
    return (op.Transpose(x, perm=[1, 0, 2]) if batch_first else x, *stacked)


def _known_length(op: AtenBuilder, batch_first: bool, position: int) -> int:
    """How many steps the operand at a position has."""
    length = op.input_shape(position)[1 if batch_first else 0]
    if not isinstance(length, int):
        raise op.refuse(
            "an LSTM with proj_size over a length that varies", "ONNX's LSTM has no projection, so it is unrolled",
            "leave the time dimension out of `dynamic`, or project the layer's output by an nn.Linear",
        )  # fmt: skip
    return length


def _is_zero(state: ir.Value) -> bool:
    """Whether a value is zeros of some shape, as a layer makes them that is given no state."""
    constant = repeated_constant(state)
    return constant is not None and not np.any(constant)


def _in_single_on_cpu(translation: Translation) -> Translation:
    """A CPU has kernels for layers in single precision; a GPU multiplies halves, and adds up their products, itself."""
    widened = in_single(translation)

    @functools.wraps(translation)
    def translate(op: AtenBuilder, *operands: Any) -> Any:
        return (widened if op.val.device.type == "cpu" else translation)(op, *operands)

    return cast(Translation, translate)


@aten("lstm.input")
@_in_single_on_cpu
def lstm(op: AtenBuilder, x: Value, hx: Sequence[Any], params: Sequence[Any], *options: Any) -> tuple[Value, ...]:
    return _recurrent(op, _LSTM, x, hx, params, *options)


def _plain(kind: _Kind) -> Callable[..., Any]:
    def translate(op: AtenBuilder, x: Value, hx: Value, params: Sequence[Any], *options: Any) -> tuple[Value, ...]:
        return _recurrent(op, kind, x, [hx], params, *options)

    return translate


for _name, _kind in (("gru.input", _GRU), ("rnn_tanh.input", _TANH), ("rnn_relu.input", _RELU)):
    aten(_name)(_in_single_on_cpu(_plain(_kind)))

_KINDS = {"lstm": _LSTM, "gru": _GRU, "rnn_tanh": _TANH, "rnn_relu": _RELU}


@aten("ontrain::recurrent")
@_in_single_on_cpu
def of_lengths(
    op: AtenBuilder, kind: str, x: Value, lengths: Value, hx: Sequence[Any], params: Sequence[Any], *options: Any
) -> tuple[Value, ...]:
    """A layer over sequences of their own lengths, see `ontrain.capture.packing`."""
    return _recurrent(op, _KINDS[kind], x, hx, params, *options, lengths=op.cast(lengths, ir.DataType.INT32))


@aten("lstm.data", "gru.data", "rnn_tanh.data", "rnn_relu.data")
def packed(op: AtenBuilder, *_: object) -> Value:
    raise op.refuse(
        "a recurrent layer's own kernel over packed rows", "only nn.LSTM, nn.GRU and nn.RNN tell which rows they are",
        "call one of these layers, or feed padded sequences and mask the loss",
    )  # fmt: skip
