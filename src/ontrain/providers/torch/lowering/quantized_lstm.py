"""An LSTM with quantised weights, whose sequences and states are quantised as onnxruntime does it.

Legend: T time, B batch, I input, H hidden, D directions. Gates lie in ONNX's order: input, output, forget, cell.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from ontrain.operators import MICROSOFT
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers

__all__: list[str] = []

Tensor = torch.Tensor
_LEVELS = 255


def _is_plain(node: ir.Node) -> bool:
    """Whether a layer has the usual activations, no lengths, no peepholes and no clip."""
    a = attributes(node)
    absent = all(len(node.inputs) <= place or node.inputs[place] is None for place in (4, 7))
    usual = all(name.lower() in ("sigmoid", "tanh") for name in a.get("activations", ())) and not a.get("clip")
    return absent and usual and not a.get("input_forget") and not a.get("activation_alpha")


@lowers("DynamicQuantizeLSTM", domain=MICROSOFT, when=_is_plain)
def dynamic_quantize_lstm(e: Emitter, node: ir.Node) -> None:
    x, w, r, b, _, h, c, _, *scales = (None if v is None else e.value(v) for v in node.inputs)
    outs = [e.out(v) for v in node.outputs]
    direction = attributes(node).get("direction", "forward")
    backwards = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]

    weights = [_weight(e, w, *scales[:2]), _weight(e, r, *scales[2:])]

    def run(*tensors: Any) -> tuple[Tensor, ...] | Tensor:
        results = _layer(backwards, *tensors)
        return results[: len(outs)] if len(outs) > 1 else results[0]

    e.compute(run, x, *weights, b, h, c, outs=outs, fresh=True)


def _weight(e: Emitter, w: Buf | None, scale: Buf | None, zero: Buf | None) -> Buf:
    """The numbers that weights [D, rows, 4 · H] stand for; made once where nothing of them changes."""
    assert w is not None and scale is not None and zero is not None
    known = [e.unchanging(buf) for buf in (w, scale, zero)]
    sources = [tensor for tensor in known if tensor is not None]
    if len(sources) == len(known):
        return e.constant(e.weights(w).derived("real", sources, lambda: _real(*sources)))
    real = e.new(w.shape, scale.dtype)
    e.compute(_real, w, scale, zero, outs=[real], fresh=True)
    return real


def _layer(
    backwards: tuple[bool, ...], x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, h: Tensor | None, c: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Y [T, D, B, H], the last states [D, B, H], the last cells [D, B, H]."""
    steps, batch, _ = x.shape
    hidden = r.shape[1]
    rows = _quantised(x)
    y = x.new_empty(steps, len(backwards), batch, hidden)
    states, cells = (x.new_zeros(len(backwards), batch, hidden) if first is None else first.clone() for first in (h, c))
    for d, backward in enumerate(backwards):
        recurrent, inputs = r[d], rows @ w[d]
        if b is not None:
            inputs += b[d].view(2, -1).sum(0)
        state, cell = states[d], cells[d]
        for t in reversed(range(steps)) if backward else range(steps):
            gates = torch.addmm(inputs[t], _quantised(state), recurrent)
            i, o, f = torch.sigmoid(gates[:, : 3 * hidden]).chunk(3, 1)
            cell = f * cell + i * torch.tanh(gates[:, 3 * hidden :])
            state = o * torch.tanh(cell)
            y[t, d] = state
        states[d], cells[d] = state, cell
    return y, states, cells


def _quantised(x: Tensor) -> Tensor:
    """x rounded to one of 256 levels from its least number, or zero, to its greatest, as in DynamicQuantizeLinear."""
    least, most = (bound.clamp(*limits) for bound, limits in zip(x.aminmax(), ((None, 0), (0, None)), strict=True))
    scale = (most - least) / _LEVELS
    scale = torch.where(scale == 0, 1, scale)
    zero = torch.round(-least / scale).clamp_(0, _LEVELS)
    return (torch.round(x / scale) + zero).clamp_(0, _LEVELS).sub_(zero).mul_(scale)


def _real(weight: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """The numbers that weights [D, rows, 4 · H] stand for, by one scale a direction, or one a column of it."""
    shape = (weight.shape[0], 1, -1)
    return (weight.to(scale.dtype) - zero.to(scale.dtype).reshape(shape)) * scale.reshape(shape)
