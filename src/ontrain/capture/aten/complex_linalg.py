"""torch.linalg of complex matrices: a matrix A + iB is the real one [[A, −B], [B, A]] of twice the size."""

from __future__ import annotations

from ontrain.capture.aten.complex import Complex, Term, as_complex, on_complex
from ontrain.capture.aten.linalg import alike, turned
from ontrain.capture.context import AtenBuilder
from ontrain.operators import Value

__all__: list[str] = []


def _whole(op: AtenBuilder, x: Complex) -> Value:
    """The real matrix of twice the size that multiplies as the complex one does."""
    top, low = op.Concat(x.real, op.Neg(x.imag), axis=-1), op.Concat(x.imag, x.real, axis=-1)
    return op.Concat(top, low, axis=-2)


def _halves(op: AtenBuilder, x: Value, axis: int) -> tuple[Value, Value]:
    first, second = op.Split(x, axis=axis, num_outputs=2, outputs=2)
    return first, second


@on_complex("linalg_eig")
def eig(op: AtenBuilder, x: Term) -> tuple[Complex, Complex]:
    operands = (x.real, x.imag) if isinstance(x, Complex) else (x,)
    real, imag, *vectors = op.composite("Eig", *operands, outputs=4)
    return Complex(real, imag), Complex(*vectors)


@on_complex("linalg_eigvals", "_linalg_eigvals")
def eigvals(op: AtenBuilder, x: Term) -> Complex:
    return eig(op, x)[0]


@on_complex("linalg_solve")
def solve(op: AtenBuilder, a: Term, b: Term, *, left: bool = True) -> Complex:
    a, b = as_complex(op, a), as_complex(op, b)
    shapes = list(a.real.shape), list(b.real.shape)
    is_vector = len(shapes[1]) == 1 or shapes[1] == shapes[0][:-1]
    if is_vector:
        b = Complex(op.Unsqueeze(b.real, [-1]), op.Unsqueeze(b.imag, [-1]))
    elif not left:
        a, b = (Complex(turned(op, x.real), turned(op, x.imag)) for x in (a, b))
    both = op.composite("Solve", *alike(op, _whole(op, a), op.Concat(b.real, b.imag, axis=-2)))
    y = Complex(*_halves(op, both, -2))
    if is_vector:
        return Complex(op.Squeeze(y.real, [-1]), op.Squeeze(y.imag, [-1]))
    return y if left else Complex(turned(op, y.real), turned(op, y.imag))


@on_complex("linalg_inv", "inverse")
def inverse(op: AtenBuilder, x: Complex) -> Complex:
    whole = op.call("com.microsoft", "Inverse", [_whole(op, x)], {}, 1)
    return Complex(*_halves(op, _halves(op, whole, -1)[0], -2))


@on_complex("linalg_matrix_exp", "matrix_exp")
def matrix_exp(op: AtenBuilder, x: Complex) -> Complex:
    whole = op.composite("MatrixExp", _whole(op, x))
    return Complex(*_halves(op, _halves(op, whole, -1)[0], -2))
