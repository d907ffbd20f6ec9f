"""Factorisations of matrices and solutions of linear systems."""

from __future__ import annotations

import numpy as np
import torch

from tests.autodiff.samples.sample import Draw, normal, sample


def definite(*shape: int) -> Draw:
    """Symmetric positive definite float64, with eigenvalues apart from one another."""

    def draw(rng):
        a = rng.standard_normal(shape)
        return a @ a.swapaxes(-1, -2) + np.diag(1.0 + np.arange(shape[-1]))

    return draw


def regular(*shape: int) -> Draw:
    """Float64 with a large diagonal."""
    return lambda rng: rng.standard_normal(shape) + 4 * np.eye(shape[-1])


def apart(*shape: int) -> Draw:
    """Float64 whose diagonal is large and spread, so that eigenvalues come in its order from any iteration."""
    return lambda rng: 0.5 * rng.standard_normal(shape) + np.diag(4.0 * np.arange(1, shape[-1] + 1))


def _eigenvalues(x, imag=None):
    values = torch.linalg.eigvals(x if imag is None else torch.complex(x, imag))
    return values.real, values.imag


def _complex_det(real, imag):
    y = torch.linalg.det(torch.complex(real, imag))
    return y.real, y.imag


def _complex_qr(real, imag):
    q, r = torch.linalg.qr(torch.complex(real, imag))
    return q.real, q.imag, r.real, r.imag


def _triangular(upper: int, unit: int, transpose: int):
    def twin(a, b):
        a = a.mT if transpose else a
        return torch.linalg.solve_triangular(a, b, upper=upper != transpose, unitriangular=bool(unit))

    return twin


def _factors(x):
    return torch.linalg.lu_factor(x)[0]


LINALG = [
    *(
        sample(
            "TriangularSolve", regular(*shape, 3, 3), normal(*shape, 3, 2), domain="ontrain", upper=upper, unit=unit,
            transpose=transpose, twin=_triangular(upper, unit, transpose),
        )
        for shape in ((), (2,))
        for upper, unit, transpose in ((0, 0, 0), (1, 0, 0), (0, 1, 1), (1, 1, 0), (0, 0, 1), (1, 0, 1))
    ),
    *(
        sample("Solve", regular(*shape, 3, 3), normal(*shape, 3, 2), domain="ontrain", twin=torch.linalg.solve)
        for shape in ((), (2,))
    ),
    sample("Inverse", regular(3, 3), domain="com.microsoft", twin=torch.linalg.inv),
    sample("Inverse", regular(2, 4, 4), domain="com.microsoft", twin=torch.linalg.inv),
    sample("LogAbsDet", regular(2, 3, 3), domain="ontrain", twin=lambda x: torch.linalg.slogdet(x)[1]),
    sample("Cholesky", definite(3, 3), domain="ontrain", symmetric=True, twin=torch.linalg.cholesky),
    sample("Cholesky", definite(2, 4, 4), domain="ontrain", symmetric=True, twin=torch.linalg.cholesky),
    sample("Eigh", definite(2, 3, 3), domain="ontrain", outputs=2, symmetric=True, twin=torch.linalg.eigvalsh),
    *(
        sample("Eig", *[apart(*shape)] * count, domain="ontrain", outputs=4, seeded=(0, 1), twin=_eigenvalues)
        for shape, count in (((2, 2), 1), ((2, 2, 2), 1), ((2, 2), 2))
    ),
    *(
        sample("ComplexDet", *[apart(*shape)] * 2, domain="ontrain", outputs=2, seeded=(0, 1), twin=_complex_det)
        for shape in ((1, 1), (3, 3), (2, 2, 2))
    ),
    *(
        sample("ComplexQr", *[normal(*shape)] * 2, domain="ontrain", outputs=4, seeded=(0, 1, 2, 3), twin=_complex_qr)
        for shape in ((3, 2), (2, 2, 2))
    ),
    *(
        sample("ComplexSvd", *[normal(*shape)] * 2, domain="ontrain", outputs=5, full=full,
               twin=lambda real, imag: torch.linalg.svdvals(torch.complex(real, imag)))
        for shape, full in (((3, 2), 0), ((2, 2, 3), 0), ((3, 2), 1))
    ),
    sample("CholeskyEx", definite(2, 3, 3), domain="ontrain", outputs=2, symmetric=True, twin=torch.linalg.cholesky),
    sample("InverseEx", regular(2, 3, 3), domain="ontrain", outputs=2, twin=torch.linalg.inv),
    *(
        sample("Qr", normal(*shape), domain="ontrain", outputs=2, seeded=(0, 1), twin=torch.linalg.qr)
        for shape in ((4, 3), (2, 3, 3), (2, 3))
    ),
    sample("Qr", normal(2, 2, 3), domain="ontrain", outputs=2, complete=1, twin=lambda x: torch.linalg.qr(x)[0]),
    *(
        sample("Lu", normal(*shape), domain="ontrain", outputs=3, twin=_factors)
        for shape in ((3, 3), (2, 4, 2), (2, 2, 4))
    ),
    *(
        sample("HouseholderProduct", *drawn, domain="ontrain", twin=torch.linalg.householder_product)
        for drawn in ((normal(4, 3), normal(2)), (normal(2, 3, 3), normal(2, 3)))
    ),
    sample("MatrixExp", normal(3, 3), domain="ontrain", twin=torch.linalg.matrix_exp),
    sample("MatrixExp", normal(2, 2, 2), domain="ontrain", twin=torch.linalg.matrix_exp),
    *(
        sample(
            "Pinv", normal(*shape), np.array(0.0), np.array(1e-12), domain="ontrain", fixed=(1, 2),
            twin=lambda x, atol, rtol: torch.linalg.pinv(x, atol=atol, rtol=rtol),
        )
        for shape in ((4, 2), (2, 2, 3))
    ),
    sample(
        "Pinv", definite(3, 3), np.array(0.0), np.array(1e-12), domain="ontrain", fixed=(1, 2), hermitian=1,
        symmetric=True, twin=lambda x, atol, rtol: torch.linalg.pinv(x, atol=atol, rtol=rtol, hermitian=True),
    ),
    *(
        sample("Svd", normal(*shape), domain="ontrain", outputs=3, full=1, twin=torch.linalg.svdvals)
        for shape in ((4, 2), (2, 2, 3))
    ),
    *(
        sample("Svd", normal(*shape), domain="ontrain", outputs=3, twin=torch.linalg.svdvals)
        for shape in ((4, 3), (2, 3, 4))
    ),
]  # fmt: skip
