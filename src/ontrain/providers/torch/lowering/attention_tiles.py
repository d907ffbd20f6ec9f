"""Attention in tiles that stay in a processor's cache; neither scores nor probabilities are kept.

A tile is some rows of queries, of some heads of one sequence, by the keys that any of them sees. Going backward its
probabilities are computed again, from the same numbers by the same calls; of forward only the dropout mask is kept.
Attention with dropout runs so, for which ATen has no kernel on a CPU, and attention in bfloat16 under a mask: there a
tile leaves out the keys that none of its rows sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from ontrain.functions import probabilities_are_read
from ontrain.graph import static_dims
from ontrain.internals import private
from ontrain.operators import operand_of
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.attention_layout import out_by_token
from ontrain.providers.torch.lowering.random import Mask, draw_mask, find_mask
from ontrain.providers.torch.lowering.registry import attributes

__all__ = [
    "Tiling", "lower_tiles", "lower_tiles_grad", "probabilities", "runs_flash_for_cpu", "runs_in_tiles", "tiling_of",
    "widened",
]  # fmt: skip

TILED = 8 << 20
"""Bytes of scores from which on attention with dropout may keep none of them: below they stay in a cache anyway."""
WHOLE = 4 << 20
"""Bytes of scores up to which attention without dropout keeps its probabilities: products of matrices take them in half
to nine tenths of the time of ATen's kernel, which keeps none."""
_BY_PRODUCTS = {ir.DataType.BFLOAT16}
"""Types in which ATen's kernel takes longer on a CPU than tiles that leave keys out."""
_TILE = 4 << 20
"""Bytes of the scores of a tile. Going backward there are three such tiles at a time."""
_ROWS = 64
"""Rows that a tile has at least, where there are so many: products of fewer are slow. Heads go to other tiles first."""
_HIDDEN = {torch.float16: -3e4}
"""What is added to the score of a key that is hidden, or less; `_HIDES` for other types."""
_HIDES = -1e9


def runs_flash_for_cpu(node: ir.Node, as_eager: bool) -> bool:
    """Return whether an Attention of concrete shapes is computed by ATen's flash kernel for CPUs.

    Args:
        node: the operator.
        as_eager: whether kernels are to be those of eager PyTorch wherever they fit.
    """
    q, k, v = _operands(node)
    one_size = q[-1] == k[-1] == v[-1] and q[:2] == k[:2] and len(q) == 4
    if _drops(node) or not one_size or probabilities_are_read(node):
        return False
    return as_eager or (not _skips_keys(node) and _scores(node) >= WHOLE)


def runs_in_tiles(node: ir.Node) -> bool:
    """Return whether an Attention of concrete shapes that no kernel of ATen's suits is computed in tiles."""
    q, k, v = _operands(node)
    if node.outputs[0].dtype is None or len(q) != 4 or not q[:2] == k[:2] == v[:2] or probabilities_are_read(node):
        return False
    if _drops(node):
        return _scores(node) >= TILED
    return node.outputs[0].dtype in _BY_PRODUCTS and _scores(node) >= WHOLE


def _skips_keys(node: ir.Node) -> bool:
    """Whether tiles leave out enough to take less time than ATen's kernel."""
    biased = operand_of(node, 3) is not None
    return biased and node.outputs[0].dtype in _BY_PRODUCTS


def _scores(node: ir.Node) -> int:
    """Bytes of an attention's scores."""
    q, k, _ = _operands(node)
    dtype = node.outputs[0].dtype
    assert dtype is not None
    return math.ceil(math.prod(q[:-1]) * k[-2] * dtype.itemsize)


def _operands(node: ir.Node) -> list[tuple[int, ...]]:
    """Shapes of query, key and value."""
    return [static_dims(value) for value in node.inputs[:3] if value is not None]


def _drops(node: ir.Node) -> bool:
    return node.attributes.get_float("dropout", 0.0) > 0


@dataclass(frozen=True)
class Tiling:
    """How many heads and rows of queries a tile has."""

    heads: int
    rows: int

    def of(self, heads: int, length: int) -> list[tuple[slice, list[slice]]]:
        """Return for each group of heads, out of so many, its slices of rows."""
        rows = [slice(i, min(i + self.rows, length)) for i in range(0, length, self.rows)]
        return [(slice(i, min(i + self.heads, heads)), rows) for i in range(0, heads, self.heads)]


def tiling_of(heads: int, length: int, keys: int, dtype: torch.dtype) -> Tiling:
    """Return the tiles of so many heads, rows of queries, and keys."""
    row = keys * dtype.itemsize
    rows = min(length, max(_TILE // (heads * row), _ROWS))
    rows = -(-length // -(-length // rows))  # tiles of one size
    return Tiling(min(heads, max(1, _TILE // (rows * row))), rows)


# Which keys a tile sees.


def _windows(e: Emitter, value: ir.Value | None, bias: Buf | None, tiling: Tiling) -> Buf | None:
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
    """Emit attention on q [B, H, L, E], k [B, H, S, E], v [B, H, S, F]."""
    a, tiling = attributes(node), tiling_of(q.shape[1], q.shape[2], k.shape[2], q.dtype)
    windows = _windows(e, node.inputs[3] if bias is not None else None, bias, tiling)
    e.keep(node.outputs[1], bias, windows)
    if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
        return  # computed again for the probabilities alone, which the backward pass makes itself
    mask = None
    if _drops(node):
        has_mask = operand_of(node, 4) is not None
        mask = (
            find_mask(e, node.inputs[4], a["dropout"]) if has_mask
            else draw_mask(e, (*q.shape[:3], k.shape[2]), a["dropout"], node.outputs[2])
        )  # fmt: skip
    y = out_by_token(e, node.outputs[0])
    count = tiling.heads * tiling.rows * k.shape[2]
    scores, *weights = (_scratch(e, count, q.dtype) for _ in range(1 + _drops(node)))
    products, wide = _scratch(e, tiling.heads * tiling.rows * v.shape[3], q.dtype), widened(e, count, q.dtype)
    e.run(_attend, y, q, k, v, bias, windows, *_bytes(e, mask), tiling, a.get("scale", 1.0), scores, products, wide,
          *weights, writes=[y, scores, products, *wide, *weights])  # fmt: skip


def lower_tiles_grad(e: Emitter, node: ir.Node, saved: tuple[Buf | None, ...]) -> None:
    """Emit the adjoints of query, key and value."""
    dy, q, k, v = (e.value(i) for i in node.inputs[:4])
    bias, windows = saved
    a, tiling = attributes(node), tiling_of(q.shape[1], q.shape[2], k.shape[2], q.dtype)
    mask = find_mask(e, node.inputs[5], a["dropout"]) if _drops(node) else None
    outs = [out_by_token(e, value) for value in node.outputs]
    count = tiling.heads * tiling.rows * k.shape[2]
    scratch = [_scratch(e, count, q.dtype) for _ in range(2 + _drops(node))]
    wide = [buf for _ in range(2) for buf in widened(e, count, q.dtype)]
    products = _scratch(e, tiling.heads * max(q.shape[2], k.shape[2]) * max(q.shape[3], v.shape[3]), q.dtype)
    e.run(_attend_backward, *outs, dy, q, k, v, bias, windows, *_bytes(e, mask), tiling, a.get("scale", 1.0), products,
          wide, *scratch, writes=[*outs, *scratch, *wide, products])  # fmt: skip


def _scratch(e: Emitter, count: int, dtype: torch.dtype) -> Buf:
    return e.new((count,), dtype)


def _bytes(e: Emitter, mask: Mask | None) -> tuple[Buf | None, float]:
    """The decisions of a dropout, a byte each, and what the elements that stay are multiplied with."""
    return (None, 1.0) if mask is None else (e.view(mask.buf, lambda t: t.view(torch.uint8)), mask.scale)


# Running.


def _shaped(scratch: torch.Tensor, *shape: int) -> torch.Tensor:
    return scratch[: math.prod(shape)].view(shape)


def probabilities(
    out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor | None, scale: float,
    wide: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Fill `out` [H, R, S] from q [H, R, E] and k [H, S, E]; return the same, unrounded.

    Scores are what an exponential is taken of, so that in half precision a great one would not be near enough: they go
    to `wide`, of the same shape and in single precision, as those of ATen's kernels do.
    """
    scores = out
    if wide is None:
        out.baddbmm_(q, k.transpose(1, 2), beta=0, alpha=scale)
    else:
        scores = wide.baddbmm_(q.float(), k.float().transpose(1, 2), beta=0, alpha=scale)
    if bias is not None:
        scores.add_(bias)
    torch.softmax(scores, -1, out=scores)
    if wide is not None:
        out.copy_(wide)
    return scores


def widened(e: Emitter, count: int, dtype: torch.dtype) -> list[Buf]:
    """Memory for so many numbers in single precision, if numbers of this type are shorter."""
    wide = torch.promote_types(dtype, torch.float32)
    return [] if wide == dtype else [e.new((count,), wide)]


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
    windows: torch.Tensor | None, mask: torch.Tensor | None, keep: float, tiling: Tiling, scale: float,
    scores: torch.Tensor, products: torch.Tensor, wide: Sequence[torch.Tensor], decisions: torch.Tensor | None = None,
) -> None:  # fmt: skip
    for b in range(q.shape[0]):
        for heads, tiles in tiling.of(q.shape[1], q.shape[2]):
            for rows, (keys, wanted) in zip(tiles, _seen(windows, b, k.shape[2]), strict=False):
                q_, k_, v_ = q[b, heads, rows], k[b, heads, keys], v[b, heads, keys]
                shape = *q_.shape[:2], k_.shape[1]
                probs = weights = _shaped(scores, *shape)
                unrounded = [_shaped(part, *shape) for part in wide]
                probabilities(probs, q_, k_, _added(bias, wanted, b, heads, rows, keys), scale, *unrounded)
                if mask is not None and decisions is not None:
                    weights = _shaped(decisions, *shape).copy_(mask[b, heads, rows, keys]).mul_(probs)
                product = _shaped(products, *shape[:2], v.shape[3])
                product.baddbmm_(weights, v_, beta=0, alpha=keep)
                y[b, heads, rows] = product


def _attend_backward(
    dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, dy: torch.Tensor, q: torch.Tensor, k: torch.Tensor,
    v: torch.Tensor, bias: torch.Tensor | None, windows: torch.Tensor | None, mask: torch.Tensor | None, keep: float,
    tiling: Tiling, scale: float, products: torch.Tensor, wide: Sequence[torch.Tensor], scores: torch.Tensor,
    adjoints: torch.Tensor, decisions: torch.Tensor | None = None,
) -> None:  # fmt: skip
    dk.zero_()
    dv.zero_()
    for b in range(q.shape[0]):
        for heads, tiles in tiling.of(q.shape[1], q.shape[2]):
            for rows, (keys, wanted) in zip(tiles, _seen(windows, b, k.shape[2]), strict=False):
                q_, k_, v_, dy_ = q[b, heads, rows], k[b, heads, keys], v[b, heads, keys], dy[b, heads, rows]
                shape = *q_.shape[:2], k_.shape[1]
                probs, ds = _shaped(scores, *shape), _shaped(adjoints, *shape)
                unrounded, *adjoint = (_shaped(part, *shape) for part in wide) if wide else (None,)
                exact = probabilities(probs, q_, k_, _added(bias, wanted, b, heads, rows, keys), scale, unrounded)
                weights, dropped = probs, None
                if mask is not None and decisions is not None:
                    dropped = _shaped(decisions, *shape).copy_(mask[b, heads, rows, keys])
                    weights = torch.mul(probs, dropped, out=ds)
                product = _shaped(products, *k_.shape[:2], v.shape[3])
                dv[b, heads, keys].add_(product.baddbmm_(weights.transpose(1, 2), dy_, beta=0, alpha=keep))
                whole = adjoint[0] if adjoint else ds
                whole.baddbmm_(dy_.to(whole.dtype), v_.to(whole.dtype).transpose(1, 2), beta=0, alpha=keep)
                if dropped is not None:
                    whole.mul_(dropped)
                private("torch.ops.aten._softmax_backward_data").out(whole, exact, -1, exact.dtype, grad_input=whole)
                if adjoint:
                    ds.copy_(whole)
                product = _shaped(products, *q_.shape)
                dq[b, heads, rows] = product.baddbmm_(ds, k_, beta=0, alpha=scale)
                product = _shaped(products, *k_.shape)
                dk[b, heads, keys].add_(product.baddbmm_(ds.transpose(1, 2), q_, beta=0, alpha=scale))
