"""Linear algebra by torch.linalg."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from ontrain.operators.contributed import MICROSOFT
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers, lowers_composite

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
        e.compute(function, *(e.value(v) for v in node.inputs), outs=[e.out(v) for v in node.outputs])

    return lower


def _log_abs_det(x: torch.Tensor) -> torch.Tensor:
    log: torch.Tensor = torch.linalg.slogdet(x)[1]
    return log


def _thin(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    return s, u, vh


lowers_composite("Cholesky")(_by(torch.linalg.cholesky))
lowers_composite("Eigh")(_by(torch.linalg.eigh))
lowers_composite("LogAbsDet")(_by(_log_abs_det))
lowers_composite("Solve")(_by(torch.linalg.solve))
lowers("Inverse", domain=MICROSOFT)(_by(torch.linalg.inv))


lowers_composite("Svd")(_by(_thin))
