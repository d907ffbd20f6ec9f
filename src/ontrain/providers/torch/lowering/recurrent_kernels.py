"""Recurrent layers by onnxruntime's kernels, where nobody asks for their gradient.

ATen makes the steps of such a layer one call at a time, some ten microseconds a step, or copies the weights into an
order of its own at each call. onnxruntime's kernel does neither. It runs on one thread; so layers whose steps are
large enough for several threads are left to ATen.
"""

from __future__ import annotations

import onnx_ir as ir
import torch

from ontrain.operators import MICROSOFT
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers
from ontrain.providers.torch.lowering.stock_calls import emit_stock

__all__ = ["has_small_steps"]

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
    emit_stock(e, node.op_type, operands, node.outputs, attributes(node), domain=MICROSOFT)
