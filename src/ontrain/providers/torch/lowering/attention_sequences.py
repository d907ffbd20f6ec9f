"""Attention of sequences that lie packed one behind the other, on a CPU and without a gradient.

Long sequences are computed in tiles, one after the other. Short ones share a tile: a product of some rows costs a call,
whatever their number, and what hides the sequences of a tile from each other is the same for all layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir
import torch

from ontrain.functions import probabilities_are_read
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.attention_layout import out_by_token
from ontrain.providers.torch.lowering.attention_tiles import Tiling, probabilities, tiling_of, widened
from ontrain.providers.torch.lowering.registry import attributes

__all__ = ["attends_sequences", "lower_sequences"]

_TOGETHER = 64
"""Rows up to which short sequences share a tile."""


def attends_sequences(node: ir.Node) -> bool:
    """Return whether an Attention of packed sequences has no dropout, and nobody reads its probabilities."""
    differentiated = len(node.outputs) > 1 and bool(node.outputs[1].uses())
    return not node.attributes.get_float("dropout", 0.0) and not differentiated and not probabilities_are_read(node)


def lower_sequences(e: Emitter, node: ir.Node, q: Buf, k: Buf, v: Buf, bounds: ir.Value) -> None:
    """Emit attention on q, k [1, H, T, E] and v [1, H, T, F], of sequences that end at bounds[1:]."""
    a, rows, longest = attributes(node), q.shape[2], attributes(node)["longest"]
    _, heads, _, width = v.shape
    saved = e.kept(bounds)
    apart = saved[0] if saved is not None else None
    if apart is None:
        apart = e.new((rows, _TOGETHER), q.dtype)
        e.run(_hide_others, apart, e.value(bounds), writes=[apart])
        e.keep(bounds, apart)
    tiling = tiling_of(heads, longest, longest, q.dtype)
    most = max(_TOGETHER, longest)
    count = max(heads * _TOGETHER**2, tiling.heads * tiling.rows * longest)
    scores, wide = e.new((count,), q.dtype), widened(e, count, q.dtype)
    products = e.new((heads * most * width,), q.dtype)
    y = out_by_token(e, node.outputs[0])
    parts = [e.select(x, 0, 0) for x in (y, q, k, v)]
    e.run(_attend, *parts, e.value(bounds), apart, tiling, a.get("scale", 1.0), scores, products,
          *wide, writes=[parts[0], scores, products, *wide])  # fmt: skip


def _tiles(bounds: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
    """First row and the one behind the last of what is computed together, and whether it is several sequences."""
    start, alone = bounds[0], True
    for begin, end in zip(bounds, bounds[1:], strict=False):
        if end - start > _TOGETHER and begin > start:
            yield start, begin, not alone
            start, alone = begin, True
        alone = alone and begin == start
    if bounds[-1] > start:
        yield start, bounds[-1], not alone


def _hide_others(apart: torch.Tensor, bounds: torch.Tensor) -> None:
    """Fill apart [T, rows of a tile]: nothing at the rows of the same sequence, and what hides at those of others."""
    apart.zero_()
    ends = bounds.tolist()
    number = torch.searchsorted(
        bounds[1:], torch.arange(ends[-1], device=bounds.device, dtype=bounds.dtype), right=True
    )
    for start, end, several in _tiles(ends):
        if several:
            mine = number[start:end]
            apart[start:end, : end - start].masked_fill_(mine[:, None] != mine, float("-inf"))


def _attend(
    y: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: torch.Tensor, apart: torch.Tensor,
    tiling: Tiling, scale: float, scores: torch.Tensor, products: torch.Tensor, *wide: torch.Tensor,
) -> None:  # fmt: skip
    """Fill y from q, k and v, all [H, T, …]."""
    for start, end, several in _tiles(bounds.tolist()):
        n = end - start
        bias = apart[start:end, :n] if several else None
        whole = Tiling(q.shape[0], n)
        for heads, tiles in (whole if q.shape[0] * n * n <= scores.numel() else tiling).of(q.shape[0], n):
            k_, v_ = k[heads, start:end], v[heads, start:end]
            for rows in tiles:
                q_ = q[heads, start + rows.start : start + rows.stop]
                shape = *q_.shape[:2], n
                weights, *unrounded = (part[: shape[0] * shape[1] * n].view(shape) for part in (scores, *wide))
                probabilities(weights, q_, k_, bias, scale, *unrounded)
                product = products[: shape[0] * shape[1] * v.shape[2]].view(*shape[:2], v.shape[2])
                torch.bmm(weights, v_, out=product)
                y[heads, start + rows.start : start + rows.stop] = product
