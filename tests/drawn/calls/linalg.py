"""torch.linalg of any batch of matrices."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.drawn.calls.call import Call, call
from tests.drawn.draw import Draw

L = torch.linalg


def _definite(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(x.shape[-2], dtype=x.dtype)


def _regular(x: torch.Tensor) -> torch.Tensor:
    return x[..., : x.shape[-1], : x.shape[-1]] + 3 * torch.eye(min(x.shape[-2:]), dtype=x.dtype)


def _square(draw: Draw, rank: int) -> Callable[[], torch.Tensor]:
    def inputs() -> torch.Tensor:
        size = draw.integer(1, 4)
        return draw.tensor(*draw.sizes(rank, 1, 3), size, size)

    return inputs


def _of_squares(settings: tuple) -> dict:
    upper, power, order = settings
    return {
        "inv": lambda x: L.inv(_regular(x)),
        "det": lambda x: L.det(x),
        "slogdet": lambda x: L.slogdet(_regular(x))[1],
        "logdet": lambda x: torch.logdet(_definite(x)),
        "cholesky": lambda x: L.cholesky(_definite(x), upper=upper),
        "cholesky_ex": lambda x: L.cholesky_ex(_definite(x), upper=upper)[0],
        "cholesky_inverse": lambda x: torch.cholesky_inverse(L.cholesky(_definite(x), upper=upper), upper=upper),
        "eigvalsh": lambda x: L.eigvalsh(_definite(x)),
        "eigh": lambda x: L.eigh(_definite(x))[1].abs(),
        "svdvals": lambda x: L.svdvals(x),
        "matrix_power": lambda x: L.matrix_power(_regular(x), power),
        "matrix_exp": lambda x: L.matrix_exp(x * 0.3),
        "norm": lambda x: L.matrix_norm(x, order),
        "cond": lambda x: L.cond(_regular(x), 2),
        "pinv": lambda x: L.pinv(_regular(x)),
        "lu": lambda x: sum(part.square() for part in L.lu(_regular(x))[1:]),
        "qr": lambda x: L.qr(_regular(x))[1].abs(),
        "rank": lambda x: x.sum((-1, -2)) * L.matrix_rank(_regular(x)),
        "trace": lambda x: x.diagonal(0, -2, -1).sum(-1),
        "vander": lambda x: L.vander(x[..., 0]),
    }


@call.share(3)
def of_a_square(draw: Draw) -> Call:
    """Factors, determinants, spectra and powers of square matrices."""
    settings = (draw.flag(), draw.integer(-2, 3), draw.choice(["fro", "nuc", 1, 2, -1, float("inf")]))
    functions, rank = _of_squares(settings), draw.integer(0, 2)
    name = draw.choice(list(functions))
    return Call(f"linalg {name} {settings} {rank}", functions[name], _square(draw, rank))


@call.share(2)
def solution(draw: Draw) -> Call:
    """Systems of equations: of a vector or a matrix, from either side, triangular, by factors."""
    rank, vector = draw.integer(0, 2), draw.flag(0.3)
    left, upper, unit = draw.flag(), draw.flag(), draw.flag()
    ways: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "solve": lambda a, b: L.solve(_regular(a), b[..., 0] if vector and a.dim() == 2 else b),
        "solve from the right": lambda a, b: L.solve(_regular(a), b.mT, left=False),
        "triangular": lambda a, b: L.solve_triangular(
            _regular(a), b if left else b.mT, upper=upper, left=left, unitriangular=unit
        ),
        "cholesky": lambda a, b: torch.cholesky_solve(b, L.cholesky(_definite(a), upper=upper), upper=upper),
        "lstsq": lambda a, b: L.lstsq(_regular(a), b).solution,
        "lu": lambda a, b: L.lu_solve(*L.lu_factor(_regular(a)), b),
        "inverse and product": lambda a, b: L.inv(_regular(a)) @ b,
    }  # fmt: skip
    name = draw.choice(list(ways))

    def inputs() -> list[torch.Tensor]:
        batch, size = draw.sizes(rank, 1, 3), draw.integer(1, 4)
        return [draw.tensor(*batch, size, size), draw.tensor(*batch, size, draw.integer(1, 3))]

    return Call(f"{name} {rank} {left} {upper} {unit} {vector}", ways[name], inputs)


@call.share(2)
def of_a_rectangle(draw: Draw) -> Call:
    """Factors and norms of matrices with more rows than columns, or fewer."""
    rank, order, power = draw.integer(0, 2), draw.choice([0.5, 1, 2, 3]), draw.choice([1.0, 2.0, 3.0])
    functions = {
        "svd": lambda x: L.svd(x, full_matrices=False)[1],
        "svd vectors": lambda x: (lambda u, s, v: (u * s[..., None, :]) @ v)(*L.svd(x, full_matrices=False)),
        "pinv": lambda x: L.pinv(x),
        "qr": lambda x: L.qr(x)[1].abs(),
        "vector_norm": lambda x: L.vector_norm(x, order, (-1, -2)),
        "norm": lambda x: L.norm(x, dim=(-2, -1)),
        "cross": lambda x: L.cross(x[..., :3, :], x[..., :3, :].flip(-1) * 2, dim=-2),
        "vecdot": lambda x: L.vecdot(x, x.flip(-1)),
        "householder": lambda x: L.householder_product(x.mT[..., :4, :3].tril(-1), x[..., :3, 0].abs()),
        "tensor": lambda x: L.tensordot(x, x.mT, dims=1) if x.dim() == 2 else torch.tensordot(x, x, ([-1], [-1])),
        "cov": lambda x: torch.cov(x.reshape(-1, x.shape[-1])),
        "corrcoef": lambda x: torch.corrcoef(x.reshape(-1, x.shape[-1])),
        "cdist": lambda x: torch.cdist(x, x.flip(-2) + 0.1, p=power),
    }
    name = draw.choice(list(functions))
    return Call(
        f"linalg {name} {rank} {order} {power}", functions[name],
        lambda: draw.tensor(*draw.sizes(rank, 1, 3), draw.integer(3, 5), draw.integer(4, 6)),
    )  # fmt: skip
