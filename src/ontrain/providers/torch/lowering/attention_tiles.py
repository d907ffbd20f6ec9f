"""Attention with dropout in tiles that stay in a processor's cache; neither scores nor probabilities are kept.

A tile is some rows of queries, of some heads of one sequence, by the keys that any of them sees. Going backward its
probabilities are computed again, from the same numbers by the same calls; of forward only the dropout mask is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from ontrain.functions import probabilities_are_read
from ontrain.graph import static_dims
from ontrain.internals import private
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.attention_layout import out_by_token
from ontrain.providers.torch.lowering.random import Mask, draw_mask, find_mask
from ontrain.providers.torch.lowering.registry import attributes

__all__ = ["lower_tiles", "lower_tiles_grad", "runs_in_tiles"]

TILED = 8 << 20
"""Bytes of scores from which on attention with dropout may keep none of them: below they stay in a cache anyway."""
_TILE = 4 << 20
"""Bytes of the scores of a tile. Going backward there are three such tiles at a time."""
_ROWS = 64
"""Rows that a tile has at least, where there are so many: products of fewer are slow. Heads go to other tiles first."""
_HIDDEN = {torch.float16: -3e4}
"""What is added to the score of a key that is hidden, or less; `_HIDES` for other types."""
_HIDES = -1e9


def runs_in_tiles(node: ir.Node) -> bool:
    """Return whether an Attention of concrete shapes is computed in tiles, going backward a second time."""
    q, k, v = (static_dims(value) for value in node.inputs[:3] if value is not None)
    dtype = node.outputs[0].dtype
    dropout = node.attributes.get("dropout")
    if dropout is None or dropout.as_float() == 0.0 or dtype is None or len(q) != 4 or not q[:2] == k[:2] == v[:2]:
        return False
    return q[0] * q[1] * q[2] * k[2] * dtype.itemsize >= TILED and not probabilities_are_read(node)


@dataclass(frozen=True)
class _Tiling:
    """How many heads and rows of queries a tile has."""

    heads: int
    rows: int

    def of(self, heads: int, length: int) -> list[tuple[slice, list[slice]]]:
        """Return for each group of heads its slices of rows."""
        rows = [slice(i, min(i + self.rows, length)) for i in range(0, length, self.rows)]
        return [(slice(i, min(i + self.heads, heads)), rows) for i in range(0, heads, self.heads)]


def _tiling(q: Buf, k: Buf) -> _Tiling:
    _, heads, length, _ = q.shape
    row = k.shape[-2] * q.dtype.itemsize
    rows = min(length, max(_TILE // (heads * row), _ROWS))
    rows = -(-length // -(-length // rows))  # tiles of one size
    return _Tiling(min(heads, max(1, _TILE // (rows * row))), rows)


# Which keys a tile sees.


def _windows(e: Emitter, value: ir.Value | None, bias: Buf | None, tiling: _Tiling) -> Buf | None:
    """Emit for each sequence and tile of rows: first key, the one behind the last, and whether nothing is added there.

    Made once for all attentions that share a bias. int64 [sequences or 1, tiles of rows or 1, 3].
    """
    if bias is None or value is None:
        return None
    batch, heads, length, keys = bias.shape
    rows = tiling.rows if length > 1 else 1
    count = -(-length // rows)
    saved = e.kept(value)
    if saved is not None and saved[0] is not None and saved[0].shape == (batch, count, 3):
        return saved[0]
    windows = e.new((batch, count, 3), torch.int64)
    most, least = e.new((batch, count, keys), bias.dtype), e.new((batch, count, keys), bias.dtype)
    best, worst = e.new((batch, heads, length), bias.dtype), e.new((batch, count), bias.dtype)
    e.call(torch.amax, bias, -1, out=best)
    for i in range(count):
        start, size = i * rows, min(rows, length - i * rows)
        part = e.narrow(bias, 2, start, size)
        for reduce, out in ((torch.amax, most), (torch.amin, least)):
            e.call(reduce, part, (1, 2), out=e.select(out, 1, i))
        e.call(torch.amin, e.narrow(best, 2, start, size), (1, 2), out=e.select(worst, 1, i))
    e.run(_find_windows, windows, most, least, worst, writes=[windows])
    e.keep(value, windows)
    return windows


def _find_windows(windows: torch.Tensor, most: torch.Tensor, least: torch.Tensor, worst: torch.Tensor) -> None:
    """Fill `windows` from what is added to scores.

    Beside a key that is seen nothing is left of the weight of one that is hidden. A row that sees no key has weights
    for all of them, and so has all keys in its window.

    Args:
        windows: int64 [sequences, tiles, 3].
        most, least: the largest and smallest number added to each key, [sequences, tiles, keys].
        worst: the largest of the row where it is the smallest, [sequences, tiles].
    """
    low = _HIDDEN.get(most.dtype, _HIDES)
    bounds = windows.numpy()
    most_, least_, worst_ = (_array(tensor) for tensor in (most, least, worst))
    seen = ~(most_ <= low)  # what is no number is seen
    seen |= (worst_ <= low / 2)[..., None]
    bounds[..., 0] = seen.argmax(-1)
    bounds[..., 1] = seen.shape[-1] - seen[..., ::-1].argmax(-1)
    places = np.arange(seen.shape[-1])
    inside = (places >= bounds[..., :1]) & (places < bounds[..., 1:2])
    bounds[..., 2] = ~(inside & ((most_ != 0) | (least_ != 0))).any(-1)


def _array(tensor: torch.Tensor) -> npt.NDArray[np.floating]:
    """The numbers for numpy, which does not know bfloat16."""
    array: npt.NDArray[np.floating] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def _seen(windows: torch.Tensor | None, sequence: int, keys: int) -> Iterator[tuple[slice, bool]]:
    """For each tile of rows the keys in its window, and whether something is added to their scores."""
    ranges = [[0, keys, 1]] if windows is None else windows[sequence % windows.shape[0]].tolist()
    while True:
        for first, end, plain in ranges:
            yield slice(first, end), not plain


# Emitting.


def lower_tiles(e: Emitter, node: ir.Node, q: Buf, k: Buf, v: Buf, bias: Buf | None) -> None:
    """Emit attention with dropout on q [B, H, L, E], k [B, H, S, E], v [B, H, S, F]."""
    a, tiling = attributes(node), _tiling(q, k)
    windows = _windows(e, node.inputs[3] if bias is not None else None, bias, tiling)
    e.keep(node.outputs[1], bias, windows)
    if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
        return  # computed again for the probabilities alone, which the backward pass makes itself
    has_mask = len(node.inputs) > 4 and node.inputs[4] is not None
    if has_mask:
        mask = find_mask(e, node.inputs[4], a["dropout"])
    else:
        mask = draw_mask(e, (*q.shape[:3], k.shape[2]), a["dropout"], node.outputs[2])
    y = out_by_token(e, node.outputs[0])
    scores, weights = (_scratch(e, tiling.heads * tiling.rows * k.shape[2], q.dtype) for _ in range(2))
    products = _scratch(e, tiling.heads * tiling.rows * v.shape[3], q.dtype)
    e.run(_attend, y, q, k, v, bias, windows, _bytes(e, mask), tiling, a.get("scale", 1.0), mask.scale, scores, weights,
          products, writes=[y, scores, weights, products])  # fmt: skip


def lower_tiles_grad(e: Emitter, node: ir.Node, saved: tuple[Buf | None, ...]) -> None:
    """Emit the adjoints of query, key and value."""
    dy, q, k, v = (e.value(i) for i in node.inputs[:4])
    bias, windows = saved
    a, tiling = attributes(node), _tiling(q, k)
    mask = find_mask(e, node.inputs[5], a["dropout"])
    outs = [out_by_token(e, value) for value in node.outputs]
    scratch = [_scratch(e, tiling.heads * tiling.rows * k.shape[2], q.dtype) for _ in range(3)]
    products = _scratch(e, tiling.heads * max(q.shape[2], k.shape[2]) * max(q.shape[3], v.shape[3]), q.dtype)
    e.run(_attend_backward, *outs, dy, q, k, v, bias, windows, _bytes(e, mask), tiling, a.get("scale", 1.0), mask.scale,
          *scratch, products, writes=[*outs, *scratch, products])  # fmt: skip


def _scratch(e: Emitter, count: int, dtype: torch.dtype) -> Buf:
    return e.new((count,), dtype)


def _bytes(e: Emitter, mask: Mask) -> Buf:
    return e.view(mask.buf, lambda t: t.view(torch.uint8))


# Running.


def _shaped(scratch: torch.Tensor, *shape: int) -> torch.Tensor:
    return scratch[: math.prod(shape)].view(shape)


def _probabilities(
    out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor | None, scale: float
) -> None:
    """Fill out [H, R, S] from q [H, R, E] and k [H, S, E]."""
    out.baddbmm_(q, k.transpose(1, 2), beta=0, alpha=scale)
    if bias is not None:
        out.add_(bias)
    torch.softmax(out, -1, out=out)


def _added(
    bias: torch.Tensor | None, wanted: bool, sequence: int, heads: slice, rows: slice, keys: slice
) -> torch.Tensor | None:
    if bias is None or not wanted:
        return None
    part = bias[sequence % bias.shape[0], ..., keys]
    part = part if part.shape[0] == 1 else part[heads]
    return part if part.shape[1] == 1 else part[:, rows]


def _attend(
    y: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    windows: torch.Tensor | None, mask: torch.Tensor, tiling: _Tiling, scale: float, keep: float,
    scores: torch.Tensor, weights: torch.Tensor, products: torch.Tensor,
) -> None:  # fmt: skip
    for b in range(q.shape[0]):
        for heads, tiles in tiling.of(q.shape[1], q.shape[2]):
            for rows, (keys, wanted) in zip(tiles, _seen(windows, b, k.shape[2]), strict=False):
                q_, k_, v_ = q[b, heads, rows], k[b, heads, keys], v[b, heads, keys]
                shape = *q_.shape[:2], k_.shape[1]
                probs, dropped = _shaped(scores, *shape), _shaped(weights, *shape)
                _probabilities(probs, q_, k_, _added(bias, wanted, b, heads, rows, keys), scale)
                dropped.copy_(mask[b, heads, rows, keys])
                product = _shaped(products, *shape[:2], v.shape[3])
                product.baddbmm_(dropped.mul_(probs), v_, beta=0, alpha=keep)
                y[b, heads, rows] = product


def _attend_backward(
    dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, dy: torch.Tensor, q: torch.Tensor, k: torch.Tensor,
    v: torch.Tensor, bias: torch.Tensor | None, windows: torch.Tensor | None, mask: torch.Tensor, tiling: _Tiling,
    scale: float, keep: float, scores: torch.Tensor, weights: torch.Tensor, adjoints: torch.Tensor,
    products: torch.Tensor,
) -> None:  # fmt: skip
    dk.zero_()
    dv.zero_()
    for b in range(q.shape[0]):
        for heads, tiles in tiling.of(q.shape[1], q.shape[2]):
            for rows, (keys, wanted) in zip(tiles, _seen(windows, b, k.shape[2]), strict=False):
                q_, k_, v_, dy_ = q[b, heads, rows], k[b, heads, keys], v[b, heads, keys], dy[b, heads, rows]
                shape = *q_.shape[:2], k_.shape[1]
                probs, dropped, ds = (_shaped(buffer, *shape) for buffer in (scores, weights, adjoints))
                _probabilities(probs, q_, k_, _added(bias, wanted, b, heads, rows, keys), scale)
                dropped.copy_(mask[b, heads, rows, keys])
                torch.mul(probs, dropped, out=ds)
                product = _shaped(products, *k_.shape[:2], v.shape[3])
                dv[b, heads, keys].add_(product.baddbmm_(ds.transpose(1, 2), dy_, beta=0, alpha=keep))
                ds.baddbmm_(dy_, v_.transpose(1, 2), beta=0, alpha=keep).mul_(dropped)
                private("torch.ops.aten._softmax_backward_data").out(ds, probs, -1, probs.dtype, grad_input=ds)
                product = _shaped(products, *q_.shape)
                dq[b, heads, rows] = product.baddbmm_(ds, k_, beta=0, alpha=scale)
                product = _shaped(products, *k_.shape)
                dk[b, heads, keys].add_(product.baddbmm_(ds.transpose(1, 2), q_, beta=0, alpha=scale))
