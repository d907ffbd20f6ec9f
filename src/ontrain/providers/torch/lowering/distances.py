"""Distances between rows, and their gradient by matrix products where ATen takes products, too."""

from __future__ import annotations

import onnx_ir as ir
import torch

from ontrain.operators import static_dims
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import lowers_composite

__all__: list[str] = []

_MANY = 25
"""With more rows on either side ATen's distances are made by a product."""


@lowers_composite("Distances")
def distances(e: Emitter, node: ir.Node) -> None:
    a, b = (e.value(v) for v in node.inputs)
    e.compute(torch.cdist, a, b, outs=[e.out(node.outputs[0])], fresh=True)


def _by_products(node: ir.Node) -> bool:
    """Whether there are as many rows as that. A node without inputs stands for the operator as such."""
    return not node.inputs or node.inputs[0] is None or max(static_dims(node.inputs[0])[-2:]) > _MANY


@lowers_composite("DistancesGrad", when=_by_products)
def distances_grad(e: Emitter, node: ir.Node) -> None:
    e.compute(_adjoint, *(e.value(v) for v in node.inputs), outs=[e.out(node.outputs[0])], fresh=True)


def _adjoint(dy: torch.Tensor, a: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    ratio = torch.div(dy, y).masked_fill_(y == 0, 0)
    return a * ratio.sum(-1, keepdim=True) - ratio @ b
