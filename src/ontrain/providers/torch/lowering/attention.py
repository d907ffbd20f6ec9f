"""Scaled dot-product attention and its gradient as batched products with everything between them in place."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from ontrain.internals import private
from ontrain.operators import operand_of
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.attention_cuda import (
    bounds_of,
    kernel_for,
    lower_fused,
    lower_fused_grad,
    runs_flash,
)
from ontrain.providers.torch.lowering.attention_layout import out_by_token
from ontrain.providers.torch.lowering.attention_sequences import attends_sequences, lower_sequences
from ontrain.providers.torch.lowering.attention_tiles import (
    lower_tiles,
    lower_tiles_grad,
    runs_flash_for_cpu,
    runs_in_tiles,
)
from ontrain.providers.torch.lowering.matmul import batched
from ontrain.providers.torch.lowering.random import apply_mask, draw_mask, find_mask, widen
from ontrain.providers.torch.lowering.registry import attributes, lowers_composite

__all__: list[str] = []

aten = torch.ops.aten


def _transposed(e: Emitter, x: Buf) -> Buf:
    return e.view(x, lambda t: t.transpose(-1, -2))


def _flat(e: Emitter, x: Buf) -> Buf:
    """[..., R, C] as [N, R, C]; there may be no elements, so N is said."""
    return e.view(x, lambda t: t.view(math.prod(x.shape[:-2]), *x.shape[-2:]))


def _scaled(e: Emitter, x: Buf, scale: float) -> Buf:
    """x · scale as a contiguous temporary: the copy that a batched product needs anyway. For one, x itself."""
    if scale == 1.0:
        return x
    return e.call(torch.mul, x, scale, out=e.new(x.shape, x.dtype))


def _as(e: Emitter, x: Buf, dtype: torch.dtype) -> Buf:
    return x if x.dtype == dtype else e.cast(x, dtype)


def _by_rows(e: Emitter, x: Buf) -> Buf:
    """x with the elements of each row side by side: ATen's kernel reads them so, whatever their strides are."""
    return x if x.meta.stride(-1) == 1 else e.contiguous(x)


def _flash_attention(e: Emitter, node: ir.Node, q: Buf, k: Buf, v: Buf, bias: Buf | None) -> None:
    """One pass that never holds the probabilities; the logarithms of their sums stand in for them going backward."""
    y = out_by_token(e, node.outputs[0])
    sums = e.new(q.shape[:3], torch.float64 if q.dtype == torch.float64 else torch.float32)
    scale = attributes(node).get("scale", 1.0)
    kernel = private("torch.ops.aten._scaled_dot_product_flash_attention_for_cpu").default
    q, k, v = (_by_rows(e, x) for x in (q, k, v))
    e.compute(kernel, q, k, v, 0.0, False, outs=[y, sums],
              attn_mask=bias, scale=scale, fresh=True)  # fmt: skip
    if len(node.outputs) > 1:
        e.keep(node.outputs[1], y, sums, bias)


def _flash_attention_grad(e: Emitter, node: ir.Node, saved: tuple[Buf | None, ...]) -> None:
    dy, q, k, v = (_by_rows(e, e.value(i)) for i in node.inputs[:4])
    y, sums, bias = saved
    scale = attributes(node).get("scale", 1.0)
    kernel = private("torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward").default
    e.compute(
        kernel, dy, q, k, v, y, sums, 0.0, False,
        outs=[out_by_token(e, value) for value in node.outputs], attn_mask=bias, scale=scale, fresh=True,
    )  # fmt: skip


@lowers_composite("Attention")
def attention(e: Emitter, node: ir.Node) -> None:
    q, k, v = (e.value(i) for i in node.inputs[:3])
    bias = e.optional(node, 3)
    kernel = kernel_for(node, q, k, v, bias, flash=runs_flash(e.device)) if _has_fused(e.device) else None
    if kernel is not None:
        lower_fused(e, node, kernel, q, k, v, bias)
        return
    bounds = bounds_of(node)
    if bounds is not None and e.device.type == "cpu" and attends_sequences(node):
        lower_sequences(e, node, q, k, v, bounds)
        return
    if bounds is not None:
        bias = e.new((1, 1, q.shape[2], k.shape[2]), q.dtype)
        e.run(_keep_apart, bias, e.value(bounds), writes=[bias])
    if e.device.type == "cpu" and runs_flash_for_cpu(node, as_eager=e.settings.tuning is None):
        _flash_attention(e, node, q, k, v, bias)
        return
    if e.device.type == "cpu" and runs_in_tiles(node):
        lower_tiles(e, node, q, k, v, bias)
        return
    _whole(e, node, q, k, v, bias)


def _whole(e: Emitter, node: ir.Node, q: Buf, k: Buf, v: Buf, bias: Buf | None) -> None:
    """Emit attention whose scores are in memory all at once."""
    a, lead = attributes(node), q.shape[:-2]
    probs = e.out(node.outputs[1])
    # A half is not near enough to a great score, of which an exponential is taken.
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = probs if wide == q.dtype else e.new(probs.shape, wide)
    scaled = _scaled(e, _as(e, q, wide), a.get("scale", 1.0))
    e.call(torch.bmm, batched(e, scaled, lead), batched(e, _transposed(e, _as(e, k, wide)), lead), out=_flat(e, scores))
    if bias is not None:
        e.run(torch.Tensor.add_, scores, bias, writes=[scores])
    e.run(torch.softmax, scores, -1, out=scores, writes=[scores])
    if scores is not probs:
        e.copy(scores, probs)
    weights = probs
    if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
        return  # computed again for the probabilities alone
    if a.get("dropout", 0.0) > 0:
        has_mask = operand_of(node, 4) is not None
        drawn = node.inputs[4] if has_mask else node.outputs[2]
        mask = find_mask(e, drawn, a["dropout"]) if has_mask else draw_mask(e, probs.shape, a["dropout"], drawn)
        weights = apply_mask(e, probs, mask, e.new(probs.shape, probs.dtype))
        # What the elements kept are multiplied with goes into the small factor, here and going backward.
        v = _scaled(e, v, mask.scale)
    if weights is probs and scores is not probs:
        y = e.new((*lead, q.shape[-2], v.shape[-1]), wide)
        _multiply(e, batched(e, scores, lead), batched(e, _as(e, v, wide), lead), y)
        e.copy(y, e.out(node.outputs[0]))
        return
    _multiply(e, batched(e, weights, lead), batched(e, v, lead), e.out(node.outputs[0]))


def _multiply(e: Emitter, x: Buf, y: Buf, out: Buf) -> None:
    """Emit the batched product of x [N, R, K] and y [N, K, C] as out [..., R, C], whichever way that lies in memory."""
    whole = out if out.meta.is_contiguous() else e.new(out.shape, out.dtype)
    e.call(torch.bmm, x, y, out=_flat(e, whole))
    if whole is not out:
        e.run(torch.Tensor.copy_, out, whole, writes=[out])


def _has_fused(device: torch.device) -> bool:
    """Whether there are kernels that also drop out."""
    return device.type == "cuda"


def _keep_apart(bias: torch.Tensor, bounds: torch.Tensor) -> None:
    """Fill bias [1, 1, L, L]: nothing within sequences of rows that end at bounds[1:], and what hides beside them."""
    number = torch.searchsorted(bounds[1:], torch.arange(bias.shape[-1], device=bounds.device), right=True)
    bias.zero_().masked_fill_(number[:, None] != number, float("-inf"))


@lowers_composite("AttentionGrad")
def attention_grad(e: Emitter, node: ir.Node) -> None:
    saved = e.kept(node.inputs[4])
    if saved is not None and _has_fused(e.device):
        lower_fused_grad(e, node, saved)
        return
    if saved is not None:
        # Tiles keep a bias and what it hides; ATen's kernel its result, the sums and the bias.
        (lower_tiles_grad if len(saved) == 2 else _flash_attention_grad)(e, node, saved)
        return
    dy, q, k, v, probs = (e.value(i) for i in node.inputs[:5])
    a = attributes(node)
    lead, scale = q.shape[:-2], a.get("scale", 1.0)
    dropout = a.get("dropout", 0.0) > 0
    dq, dk, dv = (e.out(o) for o in node.outputs[:3])
    dscores = e.out(node.outputs[3]) if len(node.outputs) > 3 else e.new(probs.shape, probs.dtype)

    weights = probs
    if dropout:
        mask = find_mask(e, node.inputs[5], a["dropout"])
        dy = _scaled(e, dy, mask.scale)
        weights = apply_mask(e, probs, mask, e.new(probs.shape, probs.dtype))
    _multiply(e, _transposed(e, _flat(e, weights)), batched(e, dy, lead), dv)
    wide = torch.promote_types(q.dtype, torch.float32)
    unrounded = dscores if wide == q.dtype and dscores.meta.is_contiguous() else e.new(probs.shape, wide)
    dy3, v3 = (batched(e, _as(e, x, wide), lead) for x in (dy, v))
    _multiply(e, dy3, _transposed(e, v3), unrounded)
    if dropout:
        e.run(torch.Tensor.mul_, unrounded, widen(e, mask, weights), writes=[unrounded])
    e.run(
        private("torch.ops.aten._softmax_backward_data").out,
        unrounded,
        _as(e, probs, wide),
        -1,
        wide,
        grad_input=unrounded,
        writes=[unrounded],
    )
    if unrounded is not dscores:
        e.copy(unrounded, dscores)
    # The scores' own adjoint belongs to the bias; the scale goes into the small factors.
    dscores3 = batched(e, dscores, lead)
    _multiply(e, dscores3, batched(e, _scaled(e, k, scale), lead), dq)
    _multiply(e, _transposed(e, dscores3), batched(e, _scaled(e, q, scale), lead), dk)
