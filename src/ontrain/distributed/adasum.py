"""Adasum: gradients of several processes combined so that what they share counts once, and what differs adds up.

Source: Maleki et al. 2020, "Scaling Distributed Training with Adaptive Summation", arXiv:2006.02924.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ontrain.distributed.world import World
from ontrain.errors import OptionError

__all__ = ["adasum_", "check_adasum"]

Span = tuple[int, int]


def check_adasum(size: int) -> None:
    """Raise OptionError unless so many processes can be paired off, and the pairs, and so on."""
    if size & (size - 1):
        raise OptionError(
            f"distributed.enable_adasum with {size} processes",
            reason="it combines gradients in pairs, and pairs of pairs: their number must be a power of two",
            way_out=f"start {1 << (size.bit_length() - 1)} or {1 << size.bit_length()} processes",
        )


def adasum_(world: World, flat: torch.Tensor, spans: Sequence[Span]) -> torch.Tensor:
    """Combine a flat tensor over all processes, in place and alike on each.

        combined(a, b) = (1 − a·b / 2‖a‖²) a + (1 − a·b / 2‖b‖²) b

    for each span, along a tree of pairs: ranks 0 and 1, 2 and 3, then the pairs, and so on. Each process combines half
    of what it had on the level before (algorithm 1 of the paper), so that no element is computed twice and all
    processes get the same bits.

    Args:
        world: the processes, a power of two.
        flat: one-dimensional.
        spans: start and stop of each tensor in it; what lies between them is not combined.
    """
    levels: list[tuple[int, Span, Span]] = []
    low, high, distance = 0, flat.numel(), 1
    while distance < world.size:
        partner, middle = world.rank ^ distance, (low + high) // 2
        keep, give = (low, middle), (middle, high)
        if world.rank > partner:
            keep, give = give, keep
        theirs = world.swap(flat[slice(*give)], partner, keep[1] - keep[0])
        ours = flat[slice(*keep)]
        first, second = (ours, theirs) if world.rank < partner else (theirs, ours)
        inside = [(max(start, keep[0]) - keep[0], min(stop, keep[1]) - keep[0]) for start, stop in spans]
        products = torch.stack([_products(first[start:stop], second[start:stop]) for start, stop in _whole(inside)])
        _combine(first, second, ours, inside, _sum_over(world, products, 2 * distance).tolist())
        levels.append((partner, keep, give))
        (low, high), distance = keep, 2 * distance
    for partner, keep, give in reversed(levels):
        flat[slice(*give)] = world.swap(flat[slice(*keep)], partner, give[1] - give[0])
    return flat


def _whole(spans: Sequence[Span]) -> list[Span]:
    """Spans without any element as empty ones."""
    return [(start, max(start, stop)) for start, stop in spans]


def _products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a·b, a·a and b·b, in float64."""
    return torch.stack([torch.dot(x, y).double() for x, y in ((a, b), (a, a), (b, b))])


def _sum_over(world: World, products: torch.Tensor, block: int) -> torch.Tensor:
    """Add up over the processes that hold the halves of the same vectors: as many neighbours as `block` says.

    Both partners of an exchange add the same two numbers, so all of them get the same bits.
    """
    distance = 1
    while distance < block:
        theirs = world.swap(products.reshape(-1), world.rank ^ distance, products.numel())
        products = products + theirs.view_as(products)
        distance *= 2
    return products


def _combine(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, spans: Sequence[Span], products: Sequence[Sequence[float]]
) -> None:
    for (start, stop), (across, of_a, of_b) in zip(spans, products, strict=True):
        if start < stop:
            # A gradient that is zero has nothing to share.
            left = 1 - across / (2 * of_a) if of_a else 1.0
            right = 1 - across / (2 * of_b) if of_b else 1.0
            out[start:stop] = left * a[start:stop] + right * b[start:stop]
