"""Sizes of a graph's inputs that the file leaves open and the graph does not: a weight fixes them, or another input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ontrain.errors import OntrainError
from ontrain.graph.agreement import agreeing_dims
from ontrain.graph.builder import Builder
from ontrain.graph.closed_control import closed
from ontrain.graph.generalise import all_sizes, shapes_at, symbols_of, taken_sizes
from ontrain.graph.rebuild import rebuild
from ontrain.sizes import free_sizes

__all__ = ["Settled", "settle", "settled", "with_sizes"]

Settled = dict[str, int | str]
"""For the symbol of a dimension a number, or the symbol of another dimension that it always equals."""


def settled(model: ir.Model) -> ir.Model:
    """Return the model with the dimensions of its inputs settled, see `settle`; itself where nothing is to do."""
    sizes = settle(model)
    return with_sizes(model, sizes) if sizes else model


def settle(model: ir.Model) -> Settled:
    """Return what the symbols of a graph's inputs stand for.

        x: [x_dim0, x_dim1]   MatMul(x, weight: [784, 10])   Sub(…, target: [target_dim0, 10])
    →   x_dim1 is 784, target_dim0 is x_dim0

    The graph is walked at two assignments of prime numbers to the symbols. Where an operator's operands disagree, the
    primes say which symbols have met, or which symbol has met a number; what both walks say is so. A size that the
    graph computes with before it meets a number, the side of an image that is flattened, stays open.
    """
    settled_sizes: Settled = {}
    while True:
        learned = _next(with_sizes(model, settled_sizes) if settled_sizes else model)
        if learned is None:
            return settled_sizes
        name, size = learned
        settled_sizes = {**{old: size if known == name else known for old, known in settled_sizes.items()}, name: size}


def with_sizes(model: ir.Model, sizes: Mapping[str, int | str]) -> ir.Model:
    """Return the model with symbols of its inputs' dimensions replaced."""
    shapes = {v.name or "": [d if isinstance(d, int) else sizes.get(str(d.value), d.value) for d in v.shape or ()]
              for v in model.graph.inputs}  # fmt: skip
    return rebuild(model, shapes=shapes)


class _MetError(Exception):
    """Ends a walk: two dimensions that must agree differ."""


def _next(model: ir.Model) -> tuple[str, int | str] | None:
    """One symbol and what it is, or None if nothing (more) can be said."""
    symbols = symbols_of(model)
    free = free_sizes(taken_sizes(model.graph))[: 2 * len(symbols)]
    if not symbols or 2 * len(symbols) > len(free):
        return None
    # Ascending, then descending: a difference that makes one symbol's size out of another's does so in one of them.
    walks = [_walk(model, dict(zip(symbols, sizes, strict=True))) for sizes in (free[::2], free[::-2])]
    return walks[0] if walks[0] == walks[1] else None


def _walk(model: ir.Model, point: Mapping[str, int]) -> tuple[str, int | str] | None:
    names = {size: name for name, size in point.items()}
    shapes = shapes_at(model, all_sizes(model, point))
    met: list[tuple[str, int | str]] = []

    def look(op: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> None:
        for a, b in agreeing_dims(node, inputs):
            if a in names or b in names:
                # The symbol that came first stays.
                first, second = sorted((a, b), key=lambda n: list(names).index(n) if n in names else -1)
                met.append((names[second], names.get(first, first)))
                raise _MetError

    try:
        rebuild(model, look, shapes=shapes, control=closed)
    except _MetError:
        return met[0]
    except OntrainError:
        return None  # who specialises the graph is told
    return None
