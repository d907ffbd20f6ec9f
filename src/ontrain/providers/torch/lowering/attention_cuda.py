"""Attention on a GPU by ATen's fused kernels, which hold neither scores nor probabilities, dropout included.

Without anything added to the scores, or with a causal mask, it is flash attention, in half precision; with something
added, or in single precision, the memory-efficient kernel. Masks are drawn inside the kernels: of forward they keep
where their draws began, and going backward they draw again. Of sequences that lie packed one behind the other both
kernels take the bounds.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from ontrain.capture import HALF_DTYPES
from ontrain.functions import probabilities_are_read
from ontrain.internals import private
from ontrain.operators import operand_of
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.attention_layout import out_by_token
from ontrain.providers.torch.lowering.registry import attributes
from ontrain.providers.torch.replay import drawing_from

__all__ = ["bounds_of", "kernel_for", "lower_fused", "lower_fused_grad", "runs_flash"]

aten = torch.ops.aten
_HIDES = {torch.float16: -3e4}
"""A causal mask adds so much, or less, to what a row may not see; -1e9 for other types."""
_WIDEST = 256
"""Elements of a head that flash attention takes at most."""

Kept = tuple[Buf | None, ...]


@cache
def runs_flash(device: torch.device) -> bool:
    """Whether a GPU runs flash attention: one of compute capability 8.0 or later."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def kernel_for(node: ir.Node, q: Buf, k: Buf, v: Buf, bias: Buf | None, *, flash: bool = True) -> str | None:
    """Return the kernel that an Attention on a GPU runs on; None if none fits.

    "flash", "causal flash" or "efficient"; for packed sequences "flash apart" or "efficient apart". Without `flash` the
    device does not run it.
    """
    if len(q.shape) != 4 or not q.shape[:2] == k.shape[:2] == v.shape[:2] or probabilities_are_read(node):
        return None
    # A mask that is drawn here cannot be handed to a second computation, nor be taken from a first one.
    has_mask = operand_of(node, 4) is not None
    dropout = attributes(node).get("dropout", 0.0) > 0
    if dropout and (has_mask or any(use.node.op_type == "Attention" for use in node.outputs[2].uses())):
        return None
    width = q.shape[-1]
    if width % 8 or v.shape[-1] != width or k.shape[-1] != width:
        return None
    flash = flash and q.dtype in HALF_DTYPES and width <= _WIDEST
    if bounds_of(node) is not None:
        # The efficient kernel draws other masks for packed sequences going backward than forward.
        apart = "flash apart" if flash else None if dropout else "efficient apart"
        return apart if q.dtype in (*HALF_DTYPES, torch.float32) else None
    if flash:
        if bias is None:
            return "flash"
        if q.shape[2] == k.shape[2] and _is_causal(node.inputs[3], q.dtype):
            return "causal flash"
    if q.dtype not in (*HALF_DTYPES, torch.float32):
        return None
    # The kernel reads a row of what is added in vectors.
    aligned = bias is None or (k.shape[2] % 16 == 0 and bias.meta.stride(-1) == 1 and bias.dtype == q.dtype)
    return "efficient" if aligned and _is_aligned(bias) else None


def bounds_of(node: ir.Node) -> ir.Value | None:
    """Return where packed sequences begin and end, int32 [N + 1]; None where a batch is not packed."""
    return operand_of(node, 5)


def _is_aligned(bias: Buf | None) -> bool:
    if bias is None:
        return True
    strides = [step for size, step in zip(bias.shape[:-1], bias.meta.stride()[:-1], strict=True) if size > 1]
    return all(step % 16 == 0 for step in strides) and int(bias.meta.storage_offset()) % 16 == 0


def _is_causal(value: ir.Value | None, dtype: torch.dtype) -> bool:
    """Whether a constant hides from row i the keys after i, and adds nothing to others."""
    if value is None or value.const_value is None:
        return False
    array = value.const_value.numpy().astype(np.float32)
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        return False
    hidden = np.triu(np.ones(array.shape[-2:], dtype=bool), 1)
    return bool(np.all(array[..., ~hidden] == 0) and np.all(array[..., hidden] <= _HIDES.get(dtype, -1e9)))


def lower_fused(e: Emitter, node: ir.Node, kernel: str, q: Buf, k: Buf, v: Buf, bias: Buf | None) -> None:
    """Emit attention on q [B, H, L, E], k [B, H, S, E], v [B, H, S, E] by a kernel that `kernel_for` chose."""
    a = attributes(node)
    dropout, scale = a.get("dropout", 0.0), a.get("scale", 1.0)
    q, k, v = (_with_rows(e, operand) for operand in (q, k, v))
    generator = e.generator() if dropout else None
    chosen: _Flash | _Efficient
    if (bounds := bounds_of(node)) is not None:
        longest, bias = a["longest"], e.value(bounds)
        flash = kernel == "flash apart"
        chosen = (
            _FlashApart(dropout, scale, False, longest) if flash else _EfficientApart(dropout, scale, None, longest)
        )
    elif kernel == "efficient":
        chosen = _Efficient(dropout, scale)
        bias = None if bias is None else e.view(bias, lambda t: t.expand(*q.shape[:3], k.shape[2]))
    else:
        chosen, bias = _Flash(dropout, scale, kernel == "causal flash"), None
    results = chosen.run(q.meta, k.meta, v.meta, None if bias is None else bias.meta)
    outs = [out_by_token(e, node.outputs[0]), *(e.new(tuple(result.shape), result.dtype) for result in results[1:])]
    e.compute(chosen.forward, q, k, v, bias, generator, outs=outs, fresh=True)
    if len(node.outputs) > 1:
        e.keep(node.outputs[1], *outs, bias, kernel=chosen)


def lower_fused_grad(e: Emitter, node: ir.Node, saved: Kept) -> None:
    """Emit the adjoints of query, key and value."""
    dy, q, k, v = (_with_rows(e, e.value(operand)) for operand in node.inputs[:4])
    outs = [out_by_token(e, value) for value in node.outputs]
    chosen = e.kernel_of(node.inputs[4])
    assert isinstance(chosen, _Flash | _Efficient)
    e.compute(chosen.backward, dy, q, k, v, *saved, outs=outs, fresh=True)


@dataclass
class _Flash:
    """Flash attention: result, logarithms of sums, and where its draws began, twice."""

    dropout: float
    scale: float
    causal: bool

    def run(self, q: Tensor, k: Tensor, v: Tensor, _: Tensor | None) -> tuple[Tensor, ...]:
        results = private("torch.ops.aten._scaled_dot_product_flash_attention")(
            q, k, v, self.dropout, self.causal, False, scale=self.scale
        )
        return results[0], results[1], results[6], results[7]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, generator: Any) -> tuple[Tensor, ...]:
        with nullcontext() if generator is None else drawing_from(generator):
            return self.run(q, k, v, bias)

    def backward(self, dy: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, sums: Tensor, seed: Tensor,
                 offset: Tensor, _: Tensor | None) -> tuple[Tensor, ...]:  # fmt: skip
        results: tuple[Tensor, ...] = private("torch.ops.aten._scaled_dot_product_flash_attention_backward")(
            dy, q, k, v, y, sums, None, None, q.shape[2], k.shape[2], self.dropout, self.causal, seed, offset,
            scale=self.scale,
        )  # fmt: skip
        return results


@dataclass
class _Efficient:
    """Memory-efficient attention: the same four; `seeds_on` is where the last two lie unless a graph is recorded."""

    dropout: float
    scale: float
    seeds_on: torch.device | None = None

    def run(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        results: tuple[Tensor, ...] = private("torch.ops.aten._scaled_dot_product_efficient_attention")(
            q, k, v, bias, True, self.dropout, False, scale=self.scale
        )
        return results

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, generator: Any) -> tuple[Tensor, ...]:
        with nullcontext() if generator is None else drawing_from(generator):
            results = self.run(q, k, v, bias)
        if not torch.cuda.is_current_stream_capturing():
            self.seeds_on = results[2].device
        return results

    def found(self, seed: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        """Seed and offset where the kernel looks for them: of a forward that was played they lie on the device."""
        if self.seeds_on is None or torch.cuda.is_current_stream_capturing():
            return seed, offset
        return seed.to(self.seeds_on), offset.to(self.seeds_on)

    def backward(self, dy: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, sums: Tensor, seed: Tensor,
                 offset: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:  # fmt: skip
        seed, offset = self.found(seed, offset)
        results: tuple[Tensor, ...] = private("torch.ops.aten._scaled_dot_product_efficient_attention_backward")(
            dy, q, k, v, bias, y, sums, seed, offset, self.dropout, [True, True, True, False], False, scale=self.scale
        )
        return results[:3]


@dataclass
class _FlashApart(_Flash):
    """Flash attention of packed sequences [1, H, T, E]; in place of what is added to scores it takes their bounds."""

    longest: int = 0

    def run(self, q: Tensor, k: Tensor, v: Tensor, bounds: Tensor | None) -> tuple[Tensor, ...]:
        results = private("torch.ops.aten._flash_attention_forward")(
            *map(_packed, (q, k, v)), bounds, bounds, self.longest, self.longest, self.dropout, False, False,
            scale=self.scale,
        )  # fmt: skip
        return _unpacked(results[0]), *results[1:4]

    def backward(self, dy: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, sums: Tensor, seed: Tensor,
                 offset: Tensor, bounds: Tensor | None) -> tuple[Tensor, ...]:  # fmt: skip
        results = private("torch.ops.aten._flash_attention_backward")(
            *map(_packed, (dy, q, k, v, y)), sums, bounds, bounds, self.longest, self.longest, self.dropout, False,
            seed, offset, scale=self.scale,
        )  # fmt: skip
        return tuple(map(_unpacked, results))


@dataclass
class _EfficientApart(_Efficient):
    """Memory-efficient attention of packed sequences [1, H, T, E], with their bounds."""

    longest: int = 0

    def run(self, q: Tensor, k: Tensor, v: Tensor, bounds: Tensor | None) -> tuple[Tensor, ...]:
        results = private("torch.ops.aten._efficient_attention_forward")(
            *(operand.transpose(1, 2) for operand in (q, k, v)), None, bounds, bounds, self.longest, self.longest,
            self.dropout, 0, True, scale=self.scale,
        )  # fmt: skip
        return results[0].transpose(1, 2), *results[1:4]

    def backward(self, dy: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, sums: Tensor, seed: Tensor,
                 offset: Tensor, bounds: Tensor | None) -> tuple[Tensor, ...]:  # fmt: skip
        seed, offset = self.found(seed, offset)
        dy, q, k, v, y = (operand.transpose(1, 2) for operand in (dy, q, k, v, y))
        results = private("torch.ops.aten._efficient_attention_backward")(
            dy, q, k, v, None, y, bounds, bounds, self.longest, self.longest, sums, self.dropout, seed, offset, 0,
            False, scale=self.scale,
        )  # fmt: skip
        return tuple(result.transpose(1, 2) for result in results[:3])


def _packed(x: Tensor) -> Tensor:
    """[1, H, T, E] as [T, H, E]."""
    return x[0].transpose(0, 1)


def _unpacked(x: Tensor) -> Tensor:
    """[T, H, E] as [1, H, T, E]."""
    return x[None].transpose(1, 2)


def _with_rows(e: Emitter, x: Buf) -> Buf:
    """The kernels take any layout whose last axis has its elements side by side, and begin at whole vectors."""
    strides = [step for size, step in zip(x.shape[:-1], x.meta.stride()[:-1], strict=True) if size > 1]
    plain = x.meta.stride(-1) == 1 and all(step % 8 == 0 for step in strides) and int(x.meta.storage_offset()) % 8 == 0
    if plain:
        return x
    copy = e.new(x.shape, x.dtype)
    e.run(torch.Tensor.copy_, copy, x, writes=[copy])
    return copy
