"""ComplexEinsum: a product of two complex tensors; every adjoint is such a product again."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.operators.agreement import shape_of
from ontrain.operators.einsum import choices_of_indices, subscripts, without_broadcast
from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.record import DOMAIN, define
from ontrain.operators.shapes import static_dims

__all__: list[str] = []


def _flops(node: ir.Node) -> int:
    """Four products and four sums for each choice of indices."""
    return 8 * choices_of_indices(node, [shape_of(node, place)[:-1] for place in (0, 1)])


define("ComplexEinsum", domain=DOMAIN, flops=_flops)


@gradient("ComplexEinsum", domain=DOMAIN)
def complex_einsum(op: Op, dy: Value, a: Value, b: Value, *, equation: str, conjugate: int = 0) -> Adjoints:
    """da = dy·conj(b), and db = dy·conj(a); of y = a·conj(b) they are da = dy·b and db = a·conj(dy)."""
    terms, result = subscripts(equation, [len(static_dims(x)) - 1 for x in (a, b)])
    whole = dict(zip(result, static_dims(dy)[:-1], strict=True))
    adjoint, first, second = (
        (dy, result),
        *(without_broadcast(op, x, term, static_dims(x)[:-1], whole) for x, term in zip((a, b), terms, strict=True)),
    )
    da = db = None
    if op.wanted[0]:
        da = _adjoint(op, a, terms[0], adjoint, second, conjugate=1 - conjugate)
    if op.wanted[1]:
        factors = (first, adjoint) if conjugate else (adjoint, first)
        db = _adjoint(op, b, terms[1], *factors, conjugate=1)
    return da, db


def _adjoint(
    op: Op, x: Value, term: str, first: tuple[Value, str], second: tuple[Value, str], *, conjugate: int
) -> Value:
    reachable = [c for c in term if c in first[1] or c in second[1]]
    equation = f"{first[1]},{second[1]}->{''.join(reachable)}"
    grad = op.composite("ComplexEinsum", first[0], second[0], equation=equation, conjugate=conjugate)
    alone = [i for i, c in enumerate(term) if c not in reachable]  # summed within this operand
    return op.Expand(op.Unsqueeze(grad, alone), list(static_dims(x))) if alone else grad
