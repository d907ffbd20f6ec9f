"""ATen's fused attention of packed sequences, for a machine without a GPU: what its kernels are documented to give.

They are registered for the CPU, where ATen has none. Without dropout; sums are kept as the kernels keep them, and
backward insists on getting them, and the result, as forward gave them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["packed_kernels"]


def _spans(bounds: Tensor, longest: int) -> list[slice]:
    assert bounds.dtype == torch.int32 and bounds.dim() == 1 and int(bounds[0]) == 0
    spans = [slice(a, b) for a, b in zip(bounds.tolist(), bounds.tolist()[1:], strict=False)]
    assert all(0 <= span.stop - span.start <= longest for span in spans)
    return spans


def _probabilities(q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Of one sequence [L, H, E], in double precision: [H, L, L], and logarithms of sums [H, L]."""
    scores = torch.einsum("lhe,she->hls", q.double(), k.double()) * scale
    return scores.softmax(-1), scores.logsumexp(-1).float()


def _forward(q: Tensor, k: Tensor, v: Tensor, spans: list[slice], scale: float) -> tuple[Tensor, list[Tensor]]:
    # What no kernel writes to is there to be seen.
    y, sums = torch.full_like(q, math.nan), []
    for span in spans:
        probs, total = _probabilities(q[span], k[span], scale)
        y[span] = torch.einsum("hls,she->lhe", probs, v[span].double()).to(y.dtype)
        sums.append(total)
    return y, sums


def _backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, sums: list[Tensor], spans: list[slice], scale: float
) -> tuple[Tensor, ...]:
    gradients = tuple(torch.full_like(tensor, math.nan) for tensor in (q, k, v))
    for span, total in zip(spans, sums, strict=True):
        probs, recomputed = _probabilities(q[span], k[span], scale)
        dy_, q_, k_, v_ = (x[span].double() for x in (dy, q, k, v))
        assert torch.equal(torch.einsum("hls,she->lhe", probs, v_).to(y.dtype), y[span]) and torch.equal(
            recomputed, total
        )
        dp = torch.einsum("lhe,she->hls", dy_, v_)
        ds = probs * (dp - (dp * probs).sum(-1, keepdim=True)) * scale
        grads = (
            torch.einsum("hls,she->lhe", ds, k_), torch.einsum("hls,lhe->she", ds, q_),
            torch.einsum("hls,lhe->she", probs, dy_),
        )  # fmt: skip
        for place, grad in zip(gradients, grads, strict=True):
            place[span] = grad.to(place.dtype)
    return gradients


def _flash(q, k, v, bounds, keys, longest, longest_keys, dropout, causal, debug, *, scale):
    assert q.dtype in (torch.float16, torch.bfloat16) and q.dim() == 3 and bounds is keys and longest == longest_keys
    assert not dropout and not causal and not debug and all(tensor.stride(-1) == 1 for tensor in (q, k, v))
    y, sums = _forward(q, k, v, _spans(bounds, longest), scale)
    seed = torch.zeros(2, dtype=torch.uint64)
    return y, torch.cat(sums, 1), seed, torch.zeros((), dtype=torch.uint64), torch.empty(0)


def _flash_back(dy, q, k, v, y, sums, bounds, keys, longest, longest_keys, dropout, causal, seed, unused, *, scale):
    spans = _spans(bounds, longest)
    assert seed.dtype == torch.uint64 and not dropout
    return _backward(dy, q, k, v, y, [sums[:, span] for span in spans], spans, scale)


def _efficient(q, k, v, bias, bounds, keys, longest, longest_keys, dropout, mask, keep, *, scale):
    assert q.dim() == 4 and q.shape[0] == 1 and bias is None and mask == 0 and keep and not dropout
    y, totals = _forward(q[0], k[0], v[0], _spans(bounds, longest), scale)
    sums = torch.full((len(totals), q.shape[2], -(-longest // 32) * 32), math.inf)
    for place, total in zip(sums, totals, strict=True):
        place[:, : total.shape[1]] = total
    zero = torch.zeros((), dtype=torch.int64)
    return y[None], sums, zero, zero.clone(), longest, longest_keys


def _efficient_back(
    dy, q, k, v, bias, y, bounds, keys, longest, longest_keys, sums, dropout, seed, offset, mask, bias_grad, *, scale
):
    spans = _spans(bounds, longest)
    totals = [row[:, : span.stop - span.start] for row, span in zip(sums, spans, strict=True)]
    gradients = _backward(dy[0], q[0], k[0], v[0], y[0], totals, spans, scale)
    return *(gradient[None] for gradient in gradients), torch.empty(0)


@contextmanager
def packed_kernels() -> Iterator[None]:
    """Have them inside the block."""
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("_flash_attention_forward", _flash, "CPU")
        library.impl("_flash_attention_backward", _flash_back, "CPU")
        library.impl("_efficient_attention_forward", _efficient, "CPU")
        library.impl("_efficient_attention_backward", _efficient_back, "CPU")
        yield
    finally:
        library._destroy()
