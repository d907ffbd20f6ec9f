"""Functions of mathematical physics by torch.special."""

from __future__ import annotations

import onnx_ir as ir
import torch
from torch import special

from ontrain.graph import DOMAIN
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, called_by_element, lowers_composite

__all__: list[str] = []


called_by_element(
    __name__, domain=DOMAIN,
    AiryAi=special.airy_ai, BesselI0=special.i0, BesselI0e=special.i0e, BesselI1=special.i1, BesselI1e=special.i1e,
    BesselJ0=special.bessel_j0, BesselJ1=special.bessel_j1, BesselK0=special.modified_bessel_k0,
    BesselK0e=special.scaled_modified_bessel_k0, BesselK1=special.modified_bessel_k1,
    BesselK1e=special.scaled_modified_bessel_k1, BesselY0=special.bessel_y0, BesselY1=special.bessel_y1,
    Digamma=torch.digamma, Gcd=torch.gcd, Erfcx=special.erfcx, Erfinv=torch.erfinv, GammaP=special.gammainc,
    GammaQ=special.gammaincc, LogGamma=torch.lgamma, Ndtri=special.ndtri,
)  # fmt: skip


@lowers_composite("Zeta")
def zeta(e: Emitter, node: ir.Node) -> None:
    e.compute(_zeta, *(e.value(v) for v in node.inputs), outs=[e.out(node.outputs[0])])


def _zeta(exponent: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """ATen's kernels are for single and double precision, on a GPU, too."""
    wide = torch.promote_types(x.dtype, torch.float32)
    values: torch.Tensor = special.zeta(exponent.to(wide), x.to(wide))
    return values.to(x.dtype)


@lowers_composite("OrthogonalPolynomial")
def orthogonal_polynomial(e: Emitter, node: ir.Node) -> None:
    function = getattr(special, attributes(node).get("family", "legendre_polynomial_p"))
    x, degree = (e.value(v) for v in node.inputs)
    e.call(function, x, e.cast(degree, x.dtype), out=e.out(node.outputs[0], x), elementwise=True)
