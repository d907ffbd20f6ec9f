"""Linear algebra by torch.linalg."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import onnx_ir as ir
import torch

from ontrain.operators import MICROSOFT
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers, lowers_composite
from ontrain.providers.torch.lowering.single_precision import in_single_precision

__all__: list[str] = []


def _triangular(a: torch.Tensor, b: torch.Tensor, upper: bool, unit: bool, transpose: bool) -> torch.Tensor:
    a = a.mT if transpose else a
    x: torch.Tensor = torch.linalg.solve_triangular(a, b, upper=upper != transpose, unitriangular=unit)
    return x


@lowers_composite("TriangularSolve")
def triangular_solve(e: Emitter, node: ir.Node) -> None:
    told = attributes(node)
    flags = [bool(told.get(name, 0)) for name in ("upper", "unit", "transpose")]
    e.compute(_triangular, *(e.value(v) for v in node.inputs), *flags, outs=[e.out(node.outputs[0])])


def _by(function: Callable[..., Any]) -> Callable[[Emitter, ir.Node], None]:
    def lower(e: Emitter, node: ir.Node) -> None:
        called = partial(function, **attributes(node)) if node.attributes else function
        e.compute(called, *(e.value(v) for v in node.inputs), outs=[e.out(v) for v in node.outputs])

    return lower


def _log_abs_det(x: torch.Tensor) -> torch.Tensor:
    log: torch.Tensor = torch.linalg.slogdet(x)[1]
    return log


def _svd(x: torch.Tensor, full: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    u, s, vh = torch.linalg.svd(x, full_matrices=bool(full))
    return s, u, vh


def _eig(x: torch.Tensor, imag: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
    values, vectors = torch.linalg.eig(x if imag is None else torch.complex(x, imag))
    return values.real, values.imag, vectors.real, vectors.imag


def _qr(x: torch.Tensor, complete: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    q, r = torch.linalg.qr(x, mode="complete" if complete else "reduced")
    return q, r


def _complex_det(real: torch.Tensor, imag: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.linalg.det(torch.complex(real, imag))
    return y.real, y.imag


def _complex_qr(real: torch.Tensor, imag: torch.Tensor, complete: int = 0) -> tuple[torch.Tensor, ...]:
    q, r = _qr(torch.complex(real, imag), complete)
    return q.real, q.imag, r.real, r.imag


def _complex_svd(real: torch.Tensor, imag: torch.Tensor, full: int = 0) -> tuple[torch.Tensor, ...]:
    s, u, vh = _svd(torch.complex(real, imag), full)
    return s, u.real, u.imag, vh.real, vh.imag


def _order(pivots: torch.Tensor, rows: int) -> torch.Tensor:
    like = torch.empty((*pivots.shape[:-1], rows, pivots.shape[-1]), device=pivots.device)
    permutation = torch.lu_unpack(like, pivots, unpack_data=False)[0]
    if not rows:
        return permutation.new_zeros(permutation.shape[:-1], dtype=torch.int64)
    return permutation.argmax(-2)


def _pinv(x: torch.Tensor, atol: torch.Tensor, rtol: torch.Tensor, hermitian: int = 0) -> torch.Tensor:
    inverse: torch.Tensor = torch.linalg.pinv(x, atol=atol, rtol=rtol, hermitian=bool(hermitian))
    return inverse


lowers_composite("Cholesky")(_by(torch.linalg.cholesky))
lowers_composite("CholeskyEx")(_by(torch.linalg.cholesky_ex))
lowers_composite("ComplexDet")(_by(_complex_det))
lowers_composite("ComplexQr")(_by(_complex_qr))
lowers_composite("ComplexSvd")(_by(_complex_svd))
lowers_composite("Eig")(_by(_eig))
lowers_composite("Eigh")(_by(torch.linalg.eigh))
lowers_composite("LogAbsDet")(_by(_log_abs_det))
lowers_composite("Solve")(_by(torch.linalg.solve))
lowers("Inverse", domain=MICROSOFT)(_by(in_single_precision(torch.linalg.inv)))
lowers_composite("Svd")(_by(_svd))
lowers_composite("Geqrf")(_by(torch.geqrf))
lowers_composite("HouseholderProduct")(_by(torch.linalg.householder_product))
lowers_composite("InverseEx")(_by(torch.linalg.inv_ex))
lowers_composite("Lu")(_by(torch.linalg.lu_factor_ex))
lowers_composite("MatrixExp")(_by(torch.linalg.matrix_exp))
lowers_composite("Pinv")(_by(_pinv))
lowers_composite("PivotOrder")(_by(_order))
lowers_composite("Qr")(_by(_qr))
