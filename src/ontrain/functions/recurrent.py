"""LSTM, GRU and RNN as loops over time.

The products with the input are one matrix product over all steps; what is left in the loop is the product with the
hidden state and the gates. Short sequences are unrolled, see `ontrain.graph.repeat`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.gate_order import as_stored
from ontrain.functions.registry import NoBodyError, expansion
from ontrain.graph import Builder, repeat, static_dims
from ontrain.operators import Value, as_before, unrounded

__all__: list[str] = []

Activation = Callable[[Any, Any], Any]
Step = Callable[[Any, Any, Sequence[Any], Sequence[Any]], list[Any]]
"""step(op, projected input [B, G·H], states, weights): the next states, the hidden state first."""

# Formula, and the defaults of alpha and beta: the operators' own, 1 and 0 (or 1) where there is no such operator.
_ACTIVATIONS: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    "Affine": (lambda op, x, a, b: x * a + b, (1.0, 0.0)),
    "Elu": (lambda op, x, a: op.Elu(x, alpha=a), (1.0,)),
    "HardSigmoid": (lambda op, x, a, b: op.HardSigmoid(x, alpha=a, beta=b), (0.2, 0.5)),
    "LeakyRelu": (lambda op, x, a: op.LeakyRelu(x, alpha=a), (0.01,)),
    "Relu": (lambda op, x: op.Relu(x), ()),
    "ScaledTanh": (lambda op, x, a, b: op.Tanh(x * b) * a, (1.0, 1.0)),
    "Sigmoid": (lambda op, x: op.Sigmoid(x), ()),
    "Softplus": (lambda op, x: op.Softplus(x), ()),
    "Softsign": (lambda op, x: op.Softsign(x), ()),
    "Tanh": (lambda op, x: op.Tanh(x), ()),
    "ThresholdedRelu": (lambda op, x, a: op.ThresholdedRelu(x, alpha=a), (1.0,)),
}


@dataclass
class _Layer:
    """What LSTM, GRU and RNN have in common: their operands and attributes.

    Layout: T time, B batch, I input, H hidden, D directions, G gates.
    """

    op: Builder
    x: Value  # [T, B, I]
    w: Value  # [D, G·H, I]
    r: Value  # [D, G·H, H]
    bias: Value | None  # [D, 2·G·H] or None
    lengths: Value | None  # [B] or None
    initial: list[Any]  # each [D, B, H] or None
    activations: list[list[Activation]]  # for each direction
    direction: str
    layout: int

    @property
    def hidden(self) -> int:
        return static_dims(self.r)[2]

    def of_direction(self, value: Value, d: int) -> Value:
        """One direction's share of [D, …]."""
        part = value if static_dims(value)[0] == 1 else self.op.Slice(value, [d], [d + 1], [0])
        return self.op.Squeeze(part, [0])


def _layer(
    op: Builder, x: Value, w: Value, r: Value, bias: Value | None, lengths: Value | None, initial: Sequence[Any],
    names: Sequence[str], default: Sequence[str], alpha: Sequence[float], beta: Sequence[float], direction: str,
    layout: int,
) -> _Layer:  # fmt: skip
    count = static_dims(w)[0]
    if count != (2 if direction == "bidirectional" else 1):
        raise NoBodyError(f"its weights have {count} directions, it is {direction}", "give each direction its weights")
    names = [name.decode() if isinstance(name, bytes) else name for name in names] or list(default) * count
    chosen = _activations(names, list(alpha), list(beta))
    if layout:
        x = op.Transpose(x, perm=[1, 0, 2])
        initial = [None if v is None else op.Transpose(v, perm=[1, 0, 2]) for v in initial]
    if lengths is not None:
        lengths = op.Cast(lengths, to=ir.DataType.INT64)
    per = len(chosen) // count
    activations = [chosen[d * per : (d + 1) * per] for d in range(count)]
    return _Layer(op, x, w, r, bias, lengths, list(initial), activations, direction, layout)


def _activations(names: Sequence[str], alphas: list[float], betas: list[float]) -> list[Activation]:
    """The functions; each takes the next of the scaling values for those that it has."""

    def bound(formula: Callable[..., Any], values: Sequence[float]) -> Activation:
        return lambda op, x: formula(op, x, *values)

    outputs = []
    for name in names:
        if name not in _ACTIVATIONS:
            raise NoBodyError(f"its activation {name!r} is unknown", f"use one of {', '.join(_ACTIVATIONS)}")
        formula, values = _ACTIVATIONS[name]
        scaled = [queue.pop(0) if queue else value for queue, value in zip((alphas, betas), values, strict=False)]
        outputs.append(bound(formula, scaled))
    return outputs


def _run(layer: _Layer, step: Callable[[int], Step], weights: Callable[[int], list[Any]], bias: Callable[[Any], Any],
         ) -> tuple[Value, ...]:  # fmt: skip
    """All directions, one after another.

    Args:
        layer: operands and attributes.
        step: one step of a direction.
        weights: what the steps of a direction read, beside the recurrent weight's transpose that comes first.
        bias: from a direction's bias [2·G·H] what is added to the projected input.

    Returns:
        Y [T, D, B, H], then the last of each state [D, B, H]; in the layer's layout.
    """
    op = layer.op
    batch = static_dims(layer.x)[1]
    ys, lasts = [], []
    for d in range(static_dims(layer.w)[0]):
        projected = unrounded(op, op.MatMul(layer.x, op.Transpose(layer.of_direction(layer.w, d), perm=[1, 0])))
        if layer.bias is not None:
            projected = projected + bias(unrounded(op, layer.of_direction(layer.bias, d)))
        zero = op.const(np.zeros((batch, layer.hidden), layer.x.dtype.numpy()))
        states = [unrounded(op, zero if v is None else layer.of_direction(v, d)) for v in layer.initial]
        captured = [op.Transpose(layer.of_direction(layer.r, d), perm=[1, 0]), *weights(d)]
        if layer.lengths is not None:
            captured.append(layer.lengths)
        backwards = layer.direction == "reverse" or d == 1
        last, (y,) = repeat(
            op, _masked(step(d), layer.lengths is not None), trip=static_dims(layer.x)[0], carried=states,
            scanned=[projected], captured=captured, reverse=backwards,
        )  # fmt: skip
        ys.append(op.Unsqueeze(as_before(op, y, layer.x), [1]))
        lasts.append([op.Unsqueeze(as_before(op, state, layer.x), [0]) for state in last])
    finals = [op.Concat(*states, axis=0) if len(states) > 1 else states[0] for states in zip(*lasts, strict=True)]
    y = op.Concat(*ys, axis=1) if len(ys) > 1 else ys[0]
    if layer.layout:
        y = op.Transpose(y, perm=[2, 0, 1, 3])
        finals = [op.Transpose(v, perm=[1, 0, 2]) for v in finals]
    return y, *finals


def _masked(step: Step, masked: bool) -> Callable[..., tuple[None, list[Value], list[Value]]]:
    """A step as the body of a loop; beyond a sequence's length its state stays and its output is zero.

    Running backwards, a sequence begins at its own last element: until there the state is the initial one.
    """

    def body(
        op: Builder, at: Value, states: Sequence[Any], rows: Sequence[Any], captured: Sequence[Any]
    ) -> tuple[None, list[Value], list[Value]]:
        weights = captured[:-1] if masked else captured
        news = step(op, rows[0], states, weights)
        y = news[0]
        if masked:
            valid = op.Unsqueeze(op.Less(at, captured[-1]), [1])
            news = [op.Where(valid, new, old) for new, old in zip(news, states, strict=True)]
            y = op.Where(valid, y, 0.0)
        return None, news, [y]

    return body


@expansion("LSTM")
def lstm(
    op: Builder, x: Value, w: Value, r: Value, bias: Value | None = None, lengths: Value | None = None,
    h: Value | None = None, c: Value | None = None, p: Value | None = None, *, activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (), activations: Sequence[str] = (), clip: float = 0.0,
    direction: str = "forward", hidden_size: int = 0, input_forget: int = 0, layout: int = 0,
) -> tuple[Value, ...]:  # fmt: skip
    """Y, Y_h and Y_c of a long short-term memory with gates i, o, f, c and peepholes p [D, 3·H] for i, o, f.

    Source: the operator LSTM (version 22). Where its text is open, as in onnxruntime: with `input_forget` the forget
    gate is 1 − i, and `clip` bounds the gates' arguments, not the cell's value. A layer with nothing of all this is the
    composite LstmLayer.
    """
    names = [name.decode() if isinstance(name, bytes) else name for name in activations]
    plain = lengths is None and p is None and not (clip or input_forget or layout) and _are_usual(names)
    if plain and _agree(x, w, r, bias, (h, c), 2 if direction == "bidirectional" else 1):
        w, r, bias, order = as_stored(op, w, r, bias)
        return op.composite("LstmLayer", x, w, r, bias, h, c, outputs=3, direction=direction, order=order)
    layer = _layer(op, x, w, r, bias, lengths, [h, c], activations, ("Sigmoid", "Tanh", "Tanh"), activation_alpha,
                   activation_beta, direction, layout)  # fmt: skip

    def weights(d: int) -> list[Value]:
        return [] if p is None else list(op.Split(layer.of_direction(p, d), axis=0, num_outputs=3, outputs=3))

    def step_of(d: int) -> Step:
        f_act, g_act, h_act = layer.activations[d]

        def step(op: Builder, xt: Value, states: Sequence[Any], weights: Sequence[Any]) -> list[Value]:
            bounded = _bounded(op, clip)
            h, c = states
            i, o, f, g = op.Split(xt + _product(op, h, weights[0]), axis=-1, num_outputs=4, outputs=4)
            peepholes = [unrounded(op, weight) for weight in weights[1:]]
            if peepholes:
                i, f = i + peepholes[0] * c, f + peepholes[2] * c
            i = f_act(op, bounded(i))
            f = 1 - i if input_forget else f_act(op, bounded(f))
            c = f * c + i * g_act(op, bounded(g))
            if peepholes:
                o = o + peepholes[1] * c
            return [f_act(op, bounded(o)) * h_act(op, c), c]

        return step

    return _run(layer, step_of, weights, lambda b: _summed(op, b))


@expansion("GRU")
def gru(
    op: Builder, x: Value, w: Value, r: Value, bias: Value | None = None, lengths: Value | None = None,
    h: Value | None = None, *, activation_alpha: Sequence[float] = (), activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (), clip: float = 0.0, direction: str = "forward", hidden_size: int = 0,
    layout: int = 0, linear_before_reset: int = 0,
) -> tuple[Value, ...]:  # fmt: skip
    """Y and Y_h of a gated recurrent unit with gates z, r, h.

    Source: the operator GRU (version 22); PyTorch's GRU has linear_before_reset=1.
    """
    layer = _layer(op, x, w, r, bias, lengths, [h], activations, ("Sigmoid", "Tanh"), activation_alpha,
                   activation_beta, direction, layout)  # fmt: skip
    size = layer.hidden

    def weights(d: int) -> list[Value]:
        if linear_before_reset:
            if layer.bias is None:
                return []
            return [op.Slice(layer.of_direction(layer.bias, d), [5 * size], [6 * size], [0])]
        gates, candidate = _columns(op, layer.of_direction(layer.r, d), size)
        return [gates, candidate]

    def input_bias(b: Value) -> Value:
        if not linear_before_reset:
            return _summed(op, b)
        of_w, of_r = op.Split(b, axis=0, num_outputs=2, outputs=2)
        mask = np.repeat([1.0, 0.0], [2 * size, size]).astype(of_w.dtype.numpy())
        return of_w + of_r * mask

    def step_of(d: int) -> Step:
        f_act, g_act = layer.activations[d]

        def step(op: Builder, xt: Value, states: Sequence[Any], weights: Sequence[Any]) -> list[Value]:
            bounded, (h,) = _bounded(op, clip), states
            xg, xn = op.Split(xt, [2 * size, size], axis=-1, outputs=2)
            if linear_before_reset:
                hg, hn = op.Split(_product(op, h, weights[0]), [2 * size, size], axis=-1, outputs=2)
                hn = hn + unrounded(op, weights[1]) if len(weights) > 1 else hn
            else:
                hg = _product(op, h, weights[1])
            z, reset = op.Split(f_act(op, bounded(xg + hg)), axis=-1, num_outputs=2, outputs=2)
            hn = reset * hn if linear_before_reset else _product(op, reset * h, weights[2])
            n = g_act(op, bounded(xn + hn))
            return [(h - n) * z + n]

        return step

    return _run(layer, step_of, weights, input_bias)


@expansion("RNN")
def rnn(
    op: Builder, x: Value, w: Value, r: Value, bias: Value | None = None, lengths: Value | None = None,
    h: Value | None = None, *, activation_alpha: Sequence[float] = (), activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (), clip: float = 0.0, direction: str = "forward", hidden_size: int = 0,
    layout: int = 0,
) -> tuple[Value, ...]:  # fmt: skip
    """Y and Y_h of a simple recurrent network. Source: the operator RNN (version 22)."""
    layer = _layer(op, x, w, r, bias, lengths, [h], activations, ("Tanh",), activation_alpha,
                   activation_beta, direction, layout)  # fmt: skip

    def step_of(d: int) -> Step:
        (act,) = layer.activations[d]

        def step(op: Builder, xt: Value, states: Sequence[Any], weights: Sequence[Any]) -> list[Value]:
            return [act(op, _bounded(op, clip)(xt + _product(op, states[0], weights[0])))]

        return step

    return _run(layer, step_of, lambda d: [], lambda b: _summed(op, b))


def _product(op: Builder, state: Value, weight: Value) -> Value:
    """A state [B, H] times a weight, of whose precision the factors are, and not the result."""
    return unrounded(op, op.MatMul(as_before(op, state, weight), weight))


def _agree(x: Value, w: Value, r: Value, bias: Value | None, states: Sequence[Value | None], directions: int) -> bool:
    """Whether an LSTM's operands have the sizes that the operator asks for; what has others is refused step by step."""
    if not len(static_dims(x)) == len(static_dims(r)) == 3:
        return False
    (_, batch, size), hidden = static_dims(x), static_dims(r)[2]
    wanted: list[tuple[Value | None, tuple[int, ...]]] = [
        (w, (directions, 4 * hidden, size)), (r, (directions, 4 * hidden, hidden)), (bias, (directions, 8 * hidden)),
        *((state, (directions, batch, hidden)) for state in states),
    ]  # fmt: skip
    return all(value is None or static_dims(value) == shape for value, shape in wanted)


def _are_usual(activations: Sequence[str]) -> bool:
    """Whether an LSTM has the activations that it has by default."""
    return list(activations) == ["Sigmoid", "Tanh", "Tanh"] * (len(activations) // 3)


def _bounded(op: Builder, clip: float) -> Callable[[Any], Any]:
    """What an activation's argument goes through: clipping, if the layer clips."""
    return (lambda x: op.Clip(x, -clip, clip)) if clip > 0 else (lambda x: x)


def _summed(op: Builder, bias: Value) -> Value:
    """The input's and the recurrent bias, which only ever appear as a sum."""
    of_w, of_r = op.Split(bias, axis=0, num_outputs=2, outputs=2)
    return of_w + of_r


def _columns(op: Builder, r: Value, size: int) -> tuple[Value, Value]:
    """The recurrent weight [3·H, H] as factors from the right: of both gates [H, 2·H], and of the candidate [H, H]."""
    gates, candidate = op.Split(r, [2 * size, size], axis=0, outputs=2)
    return op.Transpose(gates, perm=[1, 0]), op.Transpose(candidate, perm=[1, 0])
