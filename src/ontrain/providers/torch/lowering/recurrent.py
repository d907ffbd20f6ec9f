"""A layer of long short-term memory by oneDNN's kernel, which keeps what it needs going backward in a form of its own.

Legend: T time, B batch, I input, H hidden, D directions. oneDNN's gates are input, forget, cell, output, as PyTorch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import onnx_ir as ir
import torch

from ontrain.internals import available, private
from ontrain.operators import directions_backwards, operand_of
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.recurrent_kernels import suits_kernel
from ontrain.providers.torch.lowering.registry import attributes, lowers_composite
from ontrain.providers.torch.lowering.stock_calls import emit_stock

__all__: list[str] = []

_FORWARD, _BACKWARD = "torch.ops.aten.mkldnn_rnn_layer", "torch.ops.aten.mkldnn_rnn_layer_backward"
_LSTM = 2
"""ATen's number of the kind of layer."""
Shape = tuple[int, ...]
Tensor = torch.Tensor | None


class _Weights(NamedTuple):
    """Of a direction, in the kernel's order of gates: w [4·H, I], r [4·H, H] and two biases [4·H]."""

    w: torch.Tensor
    r: torch.Tensor
    of_w: torch.Tensor
    of_r: torch.Tensor


def _fits(node: ir.Node) -> bool:
    """float32, and no step, sequence or state is empty."""
    operands = [value for value in node.inputs[:3] if value is not None and value.shape is not None]
    if len(operands) < 3 or operands[0].dtype != ir.DataType.FLOAT or not torch.backends.mkldnn.is_available():
        return False
    if available(_FORWARD) is None or available(_BACKWARD) is None:
        return False
    return all(size != 0 for value in operands for size in list(value.shape or ()))


def _runs(node: ir.Node) -> bool:
    """Whether the kernel fits, and nobody but the gradient reads gates and cells, which it does not show."""
    hidden = node.outputs[3:]
    if any(value.is_graph_output() for value in hidden) or not _fits(node):
        return False
    return all(use.node.op_type == "LstmLayerGrad" and use.idx in (6, 7) for value in hidden for use in value.uses())


def _runs_back(node: ir.Node) -> bool:
    """Whether the kernel ran forward."""
    gates = operand_of(node, 6)
    layer = gates.producer() if gates is not None else None
    return layer is not None and layer.op_type == "LstmLayer" and _runs(layer)


@lowers_composite("LstmLayer", when=_runs, devices=("cpu",))
def lstm_layer(e: Emitter, node: ir.Node) -> None:
    backwards = directions_backwards(attributes(node).get("direction", "forward"))
    x, w, r, bias, h, c = (_operand(e, node, i) for i in range(6))
    assert x is not None and w is not None and r is not None
    stored, trains = _is_stored(node), len(node.outputs) > 3
    if not trains and suits_kernel("LSTM", x, r):
        stated = {**attributes(node), "hidden_size": r.shape[2]}
        stated.pop("order", None)
        operands = [_in_standard_order(e, v) if stored and v is not None else v for v in (w, r, bias)]
        emit_stock(e, "LSTM", [x, *operands, None, h, c], node.outputs, stated)
        return
    results: list[Buf | None] = [e.out(value) for value in node.outputs[:3]]
    results += [None] * (3 - len(results))
    spaces = []
    if trains:
        size = _workspace_bytes(x.shape, w.shape[1:], r.shape[1:])
        spaces = [e.new((size,), torch.uint8) for _ in backwards]
        e.keep(node.outputs[3], *results[1:], *spaces)
    e.compute(_forward, x, w, r, bias, h, c, backwards, stored, trains, outs=[*results, *spaces], fresh=True)


@lowers_composite("LstmLayerGrad", when=_runs_back, devices=("cpu",))
def lstm_layer_grad(e: Emitter, node: ir.Node) -> None:
    backwards = directions_backwards(attributes(node).get("direction", "forward"))
    x, w, r, h, c, y = (_operand(e, node, i) for i in range(6))
    adjoints = [_operand(e, node, i) for i in range(8, 11)]
    last_h, last_c, *spaces = e.kept(node.inputs[6]) or ()
    outs = [e.out(value) if e.reads(value) else None for value in node.outputs]
    e.compute(
        _backward, x, w, r, h, c, y, last_h, last_c, spaces, adjoints, backwards, _is_stored(node), outs=outs,
        fresh=True,
    )  # fmt: skip


def _is_stored(node: ir.Node) -> bool:
    """Whether the gates of weights and biases lie in PyTorch's order."""
    return attributes(node).get("order") == "ifco"


def _in_standard_order(e: Emitter, gates: Buf) -> Buf:
    """Weights or biases [D, n·4·H, …] for the operator LSTM."""
    out = e.new(gates.shape, gates.dtype)
    e.compute(_all_standard, gates, outs=[out])
    return out


def _all_standard(gates: torch.Tensor) -> torch.Tensor:
    fours = 2 if gates.ndim == 2 else 1  # a bias has those of the input and those of the state
    return torch.stack([torch.cat([*map(_standard, direction.chunk(fours))]) for direction in gates])


def _operand(e: Emitter, node: ir.Node, index: int) -> Buf | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else e.value(value)


@lru_cache(256)
def _workspace_bytes(x: Shape, w: Shape, r: Shape) -> int:
    """What oneDNN keeps of a direction for operands of these shapes: it says so only when it runs."""
    weights = _Weights(torch.zeros(w), torch.zeros(r), *(torch.zeros(w[0]) for _ in range(2)))
    state = torch.zeros(x[1], r[1])
    with torch.autocast("cpu", enabled=False):  # around a call it would cast what the kernel is given
        return _run(torch.zeros(x), weights, state, state, reverse=False, trains=True)[3].numel()


def _run(
    x: torch.Tensor, weights: _Weights, h: torch.Tensor, c: torch.Tensor, *, reverse: bool, trains: bool
) -> tuple[torch.Tensor, ...]:
    """Y [T, B, H], the last states [B, H], and the workspace."""
    # The kernel keeps its workspace where gradients are recorded; nothing is recorded of operands without history.
    with torch.inference_mode(False), torch.set_grad_enabled(trains):
        results: tuple[torch.Tensor, ...] = private(_FORWARD)(
            x, *weights, h, c, reverse, [], _LSTM, h.shape[1], 1, True, False, False, trains
        )
    return results


def _forward(
    x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, bias: Tensor, h: Tensor, c: Tensor, backwards: Sequence[bool],
    stored: bool, trains: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    x = x.detach().contiguous()
    results = []
    for d, reverse in enumerate(backwards):
        first = [_state(states, d, x, r) for states in (h, c)]
        results.append(_run(x, _weights(w, r, bias, d, stored), *first, reverse=reverse, trains=trains))
    ys, hs, cs, *spaces = zip(*results, strict=True)
    y = ys[0].unsqueeze(1) if len(ys) == 1 else torch.stack(ys, 1)
    last = [states[0].unsqueeze(0) if len(ys) == 1 else torch.stack(states) for states in (hs, cs)]
    return (y, *last, *spaces[0]) if trains else (y, *last)


def _backward(
    x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, h: Tensor, c: Tensor, y: torch.Tensor, last_h: torch.Tensor,
    last_c: torch.Tensor, spaces: Sequence[torch.Tensor], adjoints: Sequence[Tensor], backwards: Sequence[bool],
    stored: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    x = x.detach().contiguous()
    dy, dh, dc = adjoints
    dxs, others = [], []
    for d, reverse in enumerate(backwards):
        weights = _weights(w, r, None, d, stored)
        first = [_state(states, d, x, r) for states in (h, c)]
        last = [_state(states, d, x, r) for states in (dh, dc)]
        above = torch.zeros_like(y[:, d]) if dy is None else dy[:, d]
        dx, dw, dr, db, _, dfirst, dsecond = private(_BACKWARD)(
            x, *weights, *first, y[:, d].contiguous(), last_h[d], last_c[d], above.contiguous(), *last, reverse, _LSTM,
            r.shape[2], 1, True, True, False, [], False, spaces[d],
        )  # fmt: skip
        dxs.append(dx)
        of_weights = (dw, dr, db) if stored else (_standard(dw), _standard(dr), _standard(db))
        others.append((*of_weights[:2], of_weights[2].repeat(2), dfirst, dsecond))
    dx = dxs[0] if len(dxs) == 1 else dxs[0] + dxs[1]
    return dx, *(parts[0][None] if len(parts) == 1 else torch.stack(parts) for parts in zip(*others, strict=True))


def _weights(w: torch.Tensor, r: torch.Tensor, bias: Tensor, d: int, stored: bool) -> _Weights:
    order = torch.Tensor.contiguous if stored else _of_kernel
    if bias is None:
        biases = (w.new_zeros(w.shape[1]),) * 2
    else:
        of_w, of_r = bias[d].detach().chunk(2)
        biases = order(of_w), order(of_r)
    return _Weights(order(w[d].detach()), order(r[d].detach()), *biases)


def _state(states: Tensor, d: int, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """A direction's state [B, H]; zeros for none."""
    return x.new_zeros(x.shape[1], r.shape[2]) if states is None else states[d].detach().contiguous()


def _of_kernel(gates: torch.Tensor) -> torch.Tensor:
    """Gates of the standard's order, input, output, forget, cell, in oneDNN's."""
    size = len(gates) // 4
    return torch.cat([gates[:size], gates[2 * size :], gates[size : 2 * size]])


def _standard(gates: torch.Tensor) -> torch.Tensor:
    """Gates of oneDNN's order in the standard's."""
    size = len(gates) // 4
    return torch.cat([gates[:size], gates[3 * size :], gates[size : 3 * size]])
