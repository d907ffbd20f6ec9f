"""Einsum: every adjoint is an Einsum again."""

from __future__ import annotations

import math
import string
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.operators.agreement import shape_of
from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.record import Precision, Smallest, Stock, define
from ontrain.operators.shapes import static_dims

__all__ = ["choices_of_indices", "subscripts", "without_broadcast"]


def _einsum(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    terms = node.attributes.get_string("equation", "").replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=False):
        if len(term) == len(shape):  # without an ellipsis
            yield from ((size, sizes.setdefault(letter, size)) for letter, size in zip(term, shape, strict=True))


def _einsum_flops(node: ir.Node) -> int:
    """Two operands: one product over all indices; more are taken as a chain of such products."""
    shapes = [shape_of(node, place) for place in range(len(node.inputs))]
    return 2 * choices_of_indices(node, shapes) * max(len(shapes) - 1, 0)


def choices_of_indices(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> int:
    """Return how many elements an array with an axis for each letter of a node's equation has."""
    terms, _ = subscripts(node.attributes["equation"].as_string(), list(map(len, shapes)))
    lengths: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, length in zip(term, shape, strict=True):
            lengths[letter] = max(lengths.get(letter, 1), length)
    return math.prod(lengths.values())


define(
    "Einsum",
    precision=Precision.HALF,
    agreeing=_einsum,
    flops=_einsum_flops,
    smallest=Smallest({"equation": "ij,jk->ik"}),
    stock=Stock.COMPARED,
)


@gradient("Einsum")
def einsum(op: Op, dy: Value, *xs: Value, equation: str) -> Adjoints:
    """Each operand's adjoint is the einsum of dy with all other operands, with dy's subscripts in its place."""
    terms, result = subscripts(equation, [len(static_dims(x)) for x in xs])
    whole = dict(zip(result, static_dims(dy), strict=True))
    others = [without_broadcast(op, x, term, static_dims(x), whole) for x, term in zip(xs, terms, strict=True)]
    return [
        _operand(op, dy, result, x, terms[i], [o for j, o in enumerate(others) if j != i]) if op.wanted[i] else None
        for i, x in enumerate(xs)
    ]


def subscripts(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the operands' and the result's subscripts: an ellipsis made letters, an implicit result spelled out."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    named = [term.replace("...", "") for term in terms]
    free = [c for c in string.ascii_letters if c not in left]
    most = max((rank - len(name) for rank, name in zip(ranks, named, strict=True)), default=0)
    ellipsis = "".join(free[:most])
    if not arrow:
        once = sorted(c for c in set("".join(named)) if "".join(named).count(c) == 1)
        result = ("..." if "..." in left else "") + "".join(once)
    spelled = [
        term.replace("...", ellipsis[most - (rank - len(name)) :])
        for term, name, rank in zip(terms, named, ranks, strict=True)
    ]
    return spelled, result.replace("...", ellipsis)


def without_broadcast(
    op: Op, x: Value, term: str, dims: Sequence[int], whole: dict[str, int]
) -> tuple[Value, str]:  # fmt: skip
    """Return an operand without the axes of length one that the result has longer: two lengths of a letter would clash.

    Args:
        op: the builder.
        x: the operand.
        term: its letters.
        dims: the lengths of the axes that these stand for.
        whole: those of the result, by letter.
    """
    axes = [i for i, (c, d) in enumerate(zip(term, dims, strict=True)) if d == 1 and whole.get(c, 1) != 1]
    return (op.Squeeze(x, axes), "".join(c for i, c in enumerate(term) if i not in axes)) if axes else (x, term)


def _operand(op: Op, dy: Value, result: str, x: Value, mine: str, others: list[tuple[Any, str]]) -> Value:
    unique = "".join(dict.fromkeys(mine))
    reachable = [c for c in unique if c in result or any(c in term for _, term in others)]
    equation = f"{','.join([result, *(term for _, term in others)])}->{''.join(reachable)}"
    grad = op.Einsum(dy, *(value for value, _ in others), equation=equation)
    alone = [i for i, c in enumerate(unique) if c not in reachable]  # summed within this operand
    grad = op.Unsqueeze(grad, alone) if alone else grad
    if unique != mine:
        return _on_diagonal(op, grad, x, mine)
    return op.Expand(grad, list(static_dims(x))) if alone else grad


def _on_diagonal(op: Op, grad: Value, x: Value, mine: str) -> Value:
    """Spread an adjoint over the axes of a repeated subscript: it belongs to the diagonal, zero is beside it."""
    shape, mask = static_dims(x), np.ones([1] * len(mine), bool)
    for i, c in enumerate(mine):
        if mine.index(c) < i:
            lines = [np.arange(shape[a]).reshape([-1 if a == b else 1 for b in range(len(mine))])
                     for a in (mine.index(c), i)]  # fmt: skip
            mask = mask & (lines[0] == lines[1])
    spread = op.Unsqueeze(grad, [i for i, c in enumerate(mine) if mine.index(c) < i])
    return op.Where(np.broadcast_to(mask, shape).copy(), spread, 0.0)
