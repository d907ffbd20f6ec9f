"""How results of attention lie in memory: as ATen's own do, the heads of one token side by side."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.graph import static_dims
from ontrain.providers.torch.buffers import Buf, torch_dtype
from ontrain.providers.torch.emitter import Emitter

__all__ = ["out_by_token"]


def out_by_token(e: Emitter, value: ir.Value) -> Buf:
    """Return the buffer to compute a result [B, H, L, E] into, laid out as [B, L, H, E], and bind it.

    The reshape that follows in every model is then a view. A value with a place of its own is computed there.
    """
    if e.pinned(value) is not None:
        return e.out(value)
    batch, heads, length, width = static_dims(value)
    heads_apart = e.permute(e.new((batch, length, heads, width), torch_dtype(value.dtype)), (0, 2, 1, 3))
    e.bind(value, heads_apart)
    return heads_apart
