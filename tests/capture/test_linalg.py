"""torch.linalg in a module: values and gradients are eager's on every provider, for one matrix and for a batch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import linalg, nn

from ontrain.training.ortmodule import ORTModule

pytestmark = pytest.mark.sampled(2)


def definite(p):
    return p @ p.mT + torch.eye(p.shape[-1], dtype=p.dtype) * 3


def triangle(p):
    return p.tril() + torch.eye(p.shape[-1], dtype=p.dtype) * 4


def recomposed(factors):
    u, s, vh = factors
    return u @ torch.diag_embed(s**2) @ vh


def recomposed_from_full(factors):
    u, s, vh = factors
    k = s.shape[-1]
    beyond = (u[..., k:] ** 2).sum() + u.shape[-1]  # the sum does not depend on the basis
    return recomposed((u[..., :k], s, vh)) * beyond.detach()


def root(p):
    values, vectors = linalg.eigh(definite(p))
    return vectors @ torch.diag_embed(values.sqrt()) @ vectors.mT


def moved(p):
    """Matrices whose first row is too small to be a pivot."""
    return definite(p).flip(-2)


def spectrum(p):
    """Of eigenvalues and eigenvectors what depends neither on their order nor on the phase of a vector."""
    values, vectors = linalg.eig(p)
    return vectors.abs().square() @ values.abs()[..., None]


def of_complex(function):
    """A function of complex matrices, as one of the parameter and the input."""

    def applied(p, x):
        y = function(torch.complex(p, definite(p).mT * 0.3 + p.mT))
        return torch.view_as_real(y) if y.is_complex() else y

    return applied


def hermitian(z):
    """Positive definite matrices whose eigenvalues lie apart."""
    return z @ z.mH + torch.diag(torch.arange(1, z.shape[-1] + 1)).to(z)


def root_of_complex(z):
    """The square root by eigenvalues: it does not depend on the phases of the vectors."""
    values, vectors = linalg.eigh(hermitian(z))
    return (vectors * values.sqrt()[..., None, :]) @ vectors.mH


def multiplied(z):
    q, r = linalg.qr(z)
    return q @ r**2


def recomposed_complex(z):
    u, s, vh = linalg.svd(z, full_matrices=False)
    return (u * s.square()[..., None, :]) @ vh


def recomposed_complex_from_full(z):
    u, s, vh = linalg.svd(z)
    k = s.shape[-1]
    beyond = u[..., k:].abs().square().sum() + vh[..., k:, :].abs().square().sum()  # does not depend on the basis
    return (u[..., :k] * s.square()[..., None, :]) @ vh[..., :k, :] * beyond.detach()


def completed(z):
    q, r = linalg.qr(z.detach(), mode="complete")
    return z.sum() * (q @ r).abs().sum()


FUNCTIONS = {
    "cholesky": lambda p, x: linalg.cholesky(definite(p)),
    "cholesky of complex matrices": of_complex(lambda z: linalg.cholesky(hermitian(z))),
    "cholesky upper of complex matrices": of_complex(lambda z: linalg.cholesky(hermitian(z), upper=True)),
    "cholesky_ex of complex matrices": of_complex(lambda z: linalg.cholesky_ex(hermitian(z))[0]),
    "cholesky upper": lambda p, x: linalg.cholesky(definite(p), upper=True),
    "cholesky_ex": lambda p, x: linalg.cholesky_ex(definite(p))[0],
    "cholesky_inverse": lambda p, x: torch.cholesky_inverse(triangle(p)),
    "cholesky_solve": lambda p, x: torch.cholesky_solve(x, triangle(p)),
    "cholesky_solve upper": lambda p, x: torch.cholesky_solve(x, triangle(p).mT, upper=True),
    "cond": lambda p, x: linalg.cond(p),
    "det": lambda p, x: linalg.det(definite(p)),
    "det of complex matrices": of_complex(linalg.det),
    "eig": lambda p, x: spectrum(p),
    "eig of complex matrices": lambda p, x: spectrum(torch.complex(p, p.mT)),
    "eigvals": lambda p, x: linalg.eigvals(p).abs().sort(-1).values,
    "eigh": lambda p, x: root(p),
    "eigvalsh": lambda p, x: linalg.eigvalsh(definite(p)),
    "eigh of complex matrices": of_complex(root_of_complex),
    "eigvalsh of complex matrices": of_complex(lambda z: linalg.eigvalsh(hermitian(z))),
    "eigvalsh upper of complex matrices": of_complex(lambda z: linalg.eigvalsh(hermitian(z), UPLO="U")),
    "eigvalsh upper": lambda p, x: linalg.eigvalsh(definite(p), UPLO="U"),
    "inv": lambda p, x: linalg.inv(definite(p)),
    "householder_product": lambda p, x: linalg.householder_product(p, p[..., 0, :2]),
    "inv of complex matrices": lambda p, x: torch.view_as_real(linalg.inv(torch.complex(p, definite(p)))),
    "inv_ex": lambda p, x: linalg.inv_ex(definite(p))[0],
    "lu": lambda p, x: linalg.lu(moved(p))[0] @ linalg.lu(moved(p))[1] ** 2 + linalg.lu(moved(p))[2] ** 2,
    "lu tall": lambda p, x: linalg.lu(moved(p)[..., :2])[1] ** 2 @ linalg.lu(moved(p)[..., :2])[2],
    "lu wide": lambda p, x: linalg.lu(moved(p)[..., :2, :])[1] ** 2 @ linalg.lu(moved(p)[..., :2, :])[2],
    "lu_solve": lambda p, x: linalg.lu_solve(*linalg.lu_factor(moved(p)), x),
    "lu_solve adjoint": lambda p, x: linalg.lu_solve(*linalg.lu_factor(moved(p)), x, adjoint=True),
    "lu_solve from the right": lambda p, x: linalg.lu_solve(*linalg.lu_factor(moved(p)), x.mT, left=False),
    "logdet": lambda p, x: torch.logdet(definite(p)),
    "lstsq": lambda p, x: linalg.lstsq(p[..., :2], x).solution,
    "lstsq wide": lambda p, x: linalg.lstsq(p[..., :2, :], x[..., :2, :]).solution,
    "matrix_exp": lambda p, x: linalg.matrix_exp(p),
    "matrix_exp of a large one": lambda p, x: linalg.matrix_exp(6 * p) * 1e-6,
    "matrix_exp of complex matrices": lambda p, x: torch.view_as_real(linalg.matrix_exp(torch.complex(p, p.mT))),
    "matrix_norm 2": lambda p, x: linalg.matrix_norm(p, 2),
    "matrix_norm nuclear": lambda p, x: linalg.matrix_norm(p, "nuc"),
    "matrix_power": lambda p, x: linalg.matrix_power(p, -2),
    "ormqr": lambda p, x: torch.ormqr(p[..., :2], p[..., 0, :2], x),
    "ormqr from the right": lambda p, x: torch.ormqr(p[..., :2], p[..., 0, :2], x.mT, left=False, transpose=True),
    "pinv": lambda p, x: linalg.pinv(p[..., :2]),
    "pinv of complex matrices": of_complex(lambda z: linalg.pinv(z[..., :2])),
    "pinv hermitian": lambda p, x: linalg.pinv(definite(p), hermitian=True),
    "pinv of low rank": lambda p, x: linalg.pinv(p[..., :2] @ p[..., :2, :], rtol=1e-6),
    "qr": lambda p, x: linalg.qr(p)[0] @ linalg.qr(p)[1] ** 2,
    "qr tall": lambda p, x: linalg.qr(p[..., :2])[0] @ linalg.qr(p[..., :2])[1] ** 2,
    "qr wide": lambda p, x: linalg.qr(p[..., :2, :])[0] @ linalg.qr(p[..., :2, :])[1] ** 2,
    "prod of complex matrices": of_complex(
        lambda z: z.prod(-2, keepdim=True) + z.prod() + z[..., :0, :].prod(-2).sum()
    ),
    "qr of complex matrices": of_complex(multiplied),
    "qr tall of complex matrices": of_complex(lambda z: multiplied(z[..., :2])),
    "qr wide of complex matrices": of_complex(lambda z: multiplied(z[..., :2, :])),
    "qr complete of complex matrices": of_complex(lambda z: completed(z[..., :2])),
    "slogdet of complex matrices": of_complex(lambda z: linalg.slogdet(z)[0] * linalg.slogdet(z)[1]),
    "svd of complex matrices": of_complex(recomposed_complex),
    "svd full of complex matrices": of_complex(lambda z: recomposed_complex_from_full(z[..., :2, :])),
    "svd tall of complex matrices": of_complex(lambda z: recomposed_complex(z[..., :2])),
    "svd wide of complex matrices": of_complex(lambda z: recomposed_complex(z[..., :2, :])),
    "svdvals of complex matrices": of_complex(linalg.svdvals),
    "slogdet": lambda p, x: linalg.slogdet(p)[0] * linalg.slogdet(p)[1],
    "solve": lambda p, x: linalg.solve(definite(p), x),
    "solve of complex matrices": lambda p, x: linalg.solve(torch.complex(p, definite(p)), x * 1j).abs(),
    "solve of complex matrices by a vector": lambda p, x: linalg.solve(
        torch.complex(p, definite(p)), x[..., 0] + 0j
    ).abs(),
    "solve of complex matrices from the right": lambda p, x: linalg.solve(
        torch.complex(p, definite(p)), (x * 1j).mT.resolve_conj(), left=False
    ).abs(),
    "solve from the right": lambda p, x: linalg.solve(definite(p), x.mT, left=False),
    "solve triangular": lambda p, x: linalg.solve_triangular(triangle(p), x, upper=False),
    "solve triangular of complex matrices": of_complex(
        lambda z: linalg.solve_triangular(hermitian(z), z.mT, upper=False)
    ),
    "solve triangular of ones of complex matrices": of_complex(
        lambda z: linalg.solve_triangular(hermitian(z), z, upper=True, left=False, unitriangular=True)
    ),
    "solve triangular broadcast": lambda p, x: linalg.solve_triangular(
        triangle(p.flatten()[:9].view(3, 3)), x[..., :3, :], upper=False
    ),
    "solve triangular from the right": lambda p, x: linalg.solve_triangular(triangle(p), x.mT, upper=False, left=False),
    "solve triangular of ones": lambda p, x: linalg.solve_triangular(triangle(p).mT, x, upper=True, unitriangular=True),
    "solve_ex": lambda p, x: linalg.solve_ex(moved(p), x)[0],
    "svd full": lambda p, x: recomposed_from_full(linalg.svd(p @ x)),
    "svd tall": lambda p, x: recomposed(linalg.svd(p @ x, full_matrices=False)),
    "svd wide": lambda p, x: recomposed(linalg.svd((p @ x).mT, full_matrices=False)),
    "svdvals": lambda p, x: linalg.svdvals(p),
}


class Applied(nn.Module):
    def __init__(self, function, shape):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(shape, dtype=torch.float64)), function

    def forward(self, x):
        return self.function(self.weight, x)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("provider", ["TorchExecutionProvider", "ReferenceExecutionProvider"])
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3)], ids=["matrix", "batch"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_eagers(name, shape, provider):
    ours = Applied(FUNCTIONS[name], shape)
    eager = copy.deepcopy(ours)
    x = torch.randn(*shape[:-1], 2, dtype=torch.float64)
    results = [ORTModule(ours, provider=provider)(x), eager(x)]
    weight = torch.randn_like(results[1])
    for result in results:
        (result * weight).sum().backward()
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(ours.weight.grad, eager.weight.grad, rtol=1e-8, atol=1e-9)


def test_the_determinant_of_a_singular_complex_matrix_has_its_gradient():
    """As the limit of regular ones has it: torch's own is off by what it adds to the pivot."""
    ours = Applied(lambda p, x: torch.view_as_real(linalg.det(torch.complex(p, p.mT) * x)), (3, 3))
    with torch.no_grad():
        ours.weight[2] = ours.weight[1]
        ours.weight[:, 2] = ours.weight[:, 1]
    eager = copy.deepcopy(ours)
    x = torch.ones((), dtype=torch.float64)
    ORTModule(ours)(x).sum().backward()
    a, b, c = torch.complex(eager.weight, eager.weight.mT)
    torch.view_as_real((a * linalg.cross(b, c)).sum()).sum().backward()
    torch.testing.assert_close(ours.weight.grad, eager.weight.grad, rtol=1e-9, atol=1e-10)


SINGULAR = {
    "cholesky_ex": linalg.cholesky_ex,
    "inv_ex": lambda x: linalg.inv_ex(x)[1:],
    "lu_factor_ex": lambda x: linalg.lu_factor_ex(x)[1:],
    "solve_ex": lambda x: linalg.solve_ex(x, torch.ones_like(x))[1:],
}


@pytest.mark.parametrize("provider", ["TorchExecutionProvider", "ReferenceExecutionProvider"])
@pytest.mark.parametrize("name", SINGULAR)
def test_info_tells_what_has_no_factor(name, provider):
    good, bad = torch.eye(3, dtype=torch.float64), torch.tensor([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]]).double()
    ours = Applied(lambda p, x: SINGULAR[name](x)[-1] + 0 * p.sum(), (1,))
    x = torch.stack([good, bad, -good])
    assert ORTModule(ours, provider=provider)(x).tolist() == ours(x).tolist() != [0, 0, 0]


def test_the_factor_of_what_is_not_definite_is_eagers():
    x = torch.stack([torch.eye(3), -torch.eye(3)]).double()
    ours = Applied(lambda p, x: linalg.cholesky_ex(x)[0] * p, (1,))
    torch.testing.assert_close(ORTModule(ours)(x), ours(x), rtol=0, atol=0)


def test_a_matrix_that_is_not_definite_is_an_error_as_in_eager():
    module = Applied(lambda p, x: linalg.cholesky(x), (2, 2))
    with pytest.raises(Exception, match="positive-definite"):
        ORTModule(module)(-torch.eye(2, dtype=torch.float64))


def test_an_empty_matrix_is_solved():
    ours = Applied(lambda p, x: linalg.solve_ex(x, x[:, :0].sum(1))[0].sum() + p, (1,))
    x = torch.zeros(0, 0, dtype=torch.float64)
    torch.testing.assert_close(ORTModule(ours)(x), ours(x))
