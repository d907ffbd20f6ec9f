"""Recurrent layers by onnxruntime's kernels, where nobody asks for their gradient.

ATen makes the steps of such a layer one call at a time, some ten microseconds a step, or copies the weights into an
order of its own at each call. onnxruntime's kernel does neither. It runs on one thread; so layers whose steps are
large enough for several threads are left to ATen, where there are several.
"""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from ontrain.operators import MICROSOFT
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers
from ontrain.providers.torch.lowering.stock_calls import emit_stock

__all__ = ["suits_kernel"]

_SMALL = 1 << 19
"""Multiplications of a step, of several sequences, up to which one thread is enough."""
_ALONE = {"LSTM": math.inf, "GRU": 32}
"""Sequences up to which the kernel takes less time on one thread, however large a step is.

oneDNN rearranges an LSTM's weights at each call. ATen's steps of a GRU read the gates four times over, which counts
less beside the product of many rows; those of a plain layer have no gates.
"""


def suits_kernel(op_type: str, x: Buf, r: Buf) -> bool:
    """Return whether a layer is float32, and takes less time by onnxruntime's kernel than by ATen's on all threads.

    Args:
        op_type: LSTM, GRU or RNN.
        x: [T, B, I].
        r: the recurrent weight [D, G·H, H].
    """
    batch, (_, width, hidden) = x.shape[1], r.shape
    if x.dtype != torch.float32:
        return False
    is_alone = torch.get_num_threads() == 1
    return batch == 1 or batch * width * hidden <= _SMALL or (is_alone and batch <= _ALONE.get(op_type, 0))


@lowers("DynamicQuantizeLSTM", domain=MICROSOFT, devices=("cpu",))
def dynamic_quantize_lstm(e: Emitter, node: ir.Node) -> None:
    operands = [None if value is None else e.value(value) for value in node.inputs]
    emit_stock(e, node.op_type, operands, node.outputs, attributes(node), domain=MICROSOFT)
