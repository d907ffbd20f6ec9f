"""torch.linalg in a module: values and gradients are eager's on every provider, for one matrix and for a batch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import linalg, nn

from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule

pytestmark = pytest.mark.sampled(2)


def definite(p):
    return p @ p.mT + torch.eye(p.shape[-1], dtype=p.dtype) * 3


def triangle(p):
    return p.tril() + torch.eye(p.shape[-1], dtype=p.dtype) * 4


def recomposed(factors):
    u, s, vh = factors
    return u @ torch.diag_embed(s**2) @ vh


def root(p):
    values, vectors = linalg.eigh(definite(p))
    return vectors @ torch.diag_embed(values.sqrt()) @ vectors.mT


FUNCTIONS = {
    "cholesky": lambda p, x: linalg.cholesky(definite(p)),
    "cholesky upper": lambda p, x: linalg.cholesky(definite(p), upper=True),
    "cholesky_ex": lambda p, x: linalg.cholesky_ex(definite(p))[0],
    "cholesky_inverse": lambda p, x: torch.cholesky_inverse(triangle(p)),
    "cholesky_solve": lambda p, x: torch.cholesky_solve(x, triangle(p)),
    "cholesky_solve upper": lambda p, x: torch.cholesky_solve(x, triangle(p).mT, upper=True),
    "cond": lambda p, x: linalg.cond(p),
    "det": lambda p, x: linalg.det(definite(p)),
    "eigh": lambda p, x: root(p),
    "eigvalsh": lambda p, x: linalg.eigvalsh(definite(p)),
    "eigvalsh upper": lambda p, x: linalg.eigvalsh(definite(p), UPLO="U"),
    "inv": lambda p, x: linalg.inv(definite(p)),
    "inv_ex": lambda p, x: linalg.inv_ex(definite(p))[0],
    "logdet": lambda p, x: torch.logdet(definite(p)),
    "matrix_norm 2": lambda p, x: linalg.matrix_norm(p, 2),
    "matrix_norm nuclear": lambda p, x: linalg.matrix_norm(p, "nuc"),
    "matrix_power": lambda p, x: linalg.matrix_power(p, -2),
    "slogdet": lambda p, x: linalg.slogdet(p)[0] * linalg.slogdet(p)[1],
    "solve": lambda p, x: linalg.solve(definite(p), x),
    "solve from the right": lambda p, x: linalg.solve(definite(p), x.mT, left=False),
    "solve triangular": lambda p, x: linalg.solve_triangular(triangle(p), x, upper=False),
    "solve triangular broadcast": lambda p, x: linalg.solve_triangular(
        triangle(p.flatten()[:9].view(3, 3)), x[..., :3, :], upper=False
    ),
    "solve triangular from the right": lambda p, x: linalg.solve_triangular(triangle(p), x.mT, upper=False, left=False),
    "solve triangular of ones": lambda p, x: linalg.solve_triangular(triangle(p).mT, x, upper=True, unitriangular=True),
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


def test_a_full_decomposition_is_refused_with_a_way_out():
    module = Applied(lambda p, x: linalg.svd(p[:, :2])[1], (4, 4))
    with pytest.raises(CaptureError, match="full_matrices=False"):
        ORTModule(module)(torch.ones(2))


def test_a_matrix_that_is_not_definite_is_an_error_as_in_eager():
    module = Applied(lambda p, x: linalg.cholesky(x), (2, 2))
    with pytest.raises(Exception, match="positive-definite"):
        ORTModule(module)(-torch.eye(2, dtype=torch.float64))
