"""Recurrent layers by onnxruntime's kernels, where nobody asks for their gradient.

ATen makes the steps of such a layer one call at a time, some ten microseconds a step, or copies the weights into an
order of its own at each call. onnxruntime's kernel does neither. It runs on one thread; so layers whose steps are
large enough for several threads are left to ATen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from ontrain.capture import to_array
from ontrain.operators import MICROSOFT
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers
from ontrain.providers.torch.stock_kernel import StockKernel
from ontrain.stock_node import open_node

__all__ = ["emit_kernel", "has_small_steps"]

_SMALL = 1 << 19
"""Multiplications of a step, of several sequences, up to which one thread is enough."""


def has_small_steps(x: Buf, r: Buf) -> bool:
    """Return whether a layer is float32, and its steps are too small for several threads.

    Args:
        x: [T, B, I].
        r: the recurrent weight [D, G·H, H].
    """
    batch, (_, width, hidden) = x.shape[1], r.shape
    return x.dtype == torch.float32 and (batch == 1 or batch * width * hidden <= _SMALL)


@lowers("DynamicQuantizeLSTM", domain=MICROSOFT, devices=("cpu",))
def dynamic_quantize_lstm(e: Emitter, node: ir.Node) -> None:
    operands = [None if value is None else e.value(value) for value in node.inputs]
    emit_kernel(e, node.op_type, operands, node.outputs, attributes(node), domain=MICROSOFT)


def emit_kernel(
    e: Emitter, op_type: str, operands: Sequence[Buf | None], results: Sequence[ir.Value],
    stated: dict[str, Any], domain: str = "",
) -> None:  # fmt: skip
    """Emit a layer as one call.

    Args:
        e: what it is emitted with.
        op_type: the operator.
        operands: its inputs in order; None for one that is left out.
        results: the values that its first outputs are.
        stated: its attributes.
        domain: the operator's.
    """
    fed = {at: buf for at, buf in enumerate(operands) if buf is not None}
    fixed = {at: tensor for at, buf in fed.items() if (tensor := e.unchanging(buf)) is not None}
    kinds = [
        to_array(fixed[at]) if at in fixed else None if buf is None else from_torch_dtype(buf.dtype)
        for at, buf in enumerate(operands)
    ]

    def opened() -> Any:
        return open_node(op_type, kinds, len(results), stated, domain)

    if fixed:
        settings = tuple((name, str(value)) for name, value in sorted(stated.items()))
        types = tuple((at, buf.dtype) for at, buf in fed.items() if at not in fixed)
        held = e.weights(fed[min(fixed)])
        session = held.derived((domain, op_type, settings, len(results), types), [*fixed.values()], opened)
    else:
        session = opened()
    inputs = {f"i{at}": e.contiguous(buf) for at, buf in fed.items() if at not in fixed}
    outs = {f"o{at}": e.out(value) for at, value in enumerate(results) if e.reads(value)}
    places = {name: out if out.meta.is_contiguous() else e.new(out.shape, out.dtype) for name, out in outs.items()}
    kernel = StockKernel(
        op_type, session, *({name: buf.meta for name, buf in bufs.items()} for bufs in (inputs, places))
    )
    e.run(kernel, *inputs.values(), *places.values(), writes=[*places.values()])
    for name, out in outs.items():
        if places[name] is not out:
            e.copy(places[name], out)
