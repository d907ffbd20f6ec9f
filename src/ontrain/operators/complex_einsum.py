"""ComplexEinsum: a product of two complex tensors; every adjoint is such a product again."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.operators.agreement import shape_of
from ontrain.operators.einsum import subscripts
from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.record import DOMAIN, define
from ontrain.operators.shapes import static_dims

__all__: list[str] = []


def _flops(node: ir.Node) -> int:
    """Four products and four sums for each choice of indices."""
    shapes = [shape_of(node, place)[:-1] for place in (0, 1)]
    terms, _ = subscripts(node.attributes["equation"].as_string(), [len(shape) for shape in shapes])
    lengths: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, length in zip(term, shape, strict=True):
            lengths[letter] = max(lengths.get(letter, 1), length)
    count = 8
    for length in lengths.values():
        count *= length
    return count


define("ComplexEinsum", domain=DOMAIN, flops=_flops)


@gradient("ComplexEinsum", domain=DOMAIN)
def complex_einsum(op: Op, dy: Value, a: Value, b: Value, *, equation: str, conjugate: int = 0) -> Adjoints:
    """da = dy·conj(b), and db = dy·conj(a); of y = a·conj(b) they are da = dy·b and db = a·conj(dy)."""
    terms, result = subscripts(equation, [len(static_dims(x)) - 1 for x in (a, b)])
    whole = dict(zip(result, static_dims(dy)[:-1], strict=True))
    (a_rest, a_term), (b_rest, b_term) = (_long(op, x, term, whole) for x, term in zip((a, b), terms, strict=True))
    da = db = None
    if op.wanted[0]:
        da = _adjoint(op, a, terms[0], (dy, result), (b_rest, b_term), conjugate=1 - conjugate)
    if op.wanted[1]:
        factors = [(dy, result), (a_rest, a_term)]
        db = _adjoint(op, b, terms[1], *(factors[::-1] if conjugate else factors), conjugate=1)
    return da, db


def _long(op: Op, x: Value, term: str, whole: dict[str, int]) -> tuple[Value, str]:
    """An operand without the axes of length one that the result has longer: there would be two lengths to a letter."""
    axes = [i for i, c in enumerate(term) if static_dims(x)[i] == 1 and whole.get(c, 1) != 1]
    return (op.Squeeze(x, axes), "".join(c for i, c in enumerate(term) if i not in axes)) if axes else (x, term)


def _adjoint(
    op: Op, x: Value, term: str, first: tuple[Value, str], second: tuple[Value, str], *, conjugate: int
) -> Value:
    reachable = [c for c in term if c in first[1] or c in second[1]]
    equation = f"{first[1]},{second[1]}->{''.join(reachable)}"
    grad = op.composite("ComplexEinsum", first[0], second[0], equation=equation, conjugate=conjugate)
    alone = [i for i, c in enumerate(term) if c not in reachable]  # summed within this operand
    return op.Expand(op.Unsqueeze(grad, alone), list(static_dims(x))) if alone else grad
