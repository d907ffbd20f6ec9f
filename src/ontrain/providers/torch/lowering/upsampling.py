"""Images in another size, by ATen's kernels, in the order in which the images lie."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from ontrain.providers.torch.buffers import order_of
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers_composite

__all__: list[str] = []

aten = torch.ops.aten
_NEAREST = aten.upsample_nearest2d.default, aten.upsample_nearest2d_backward.default
_LINEAR = aten.upsample_bilinear2d.default, aten.upsample_bilinear2d_backward.default
_CUBIC = aten.upsample_bicubic2d.default, aten.upsample_bicubic2d_backward.default
_KERNELS: dict[str, tuple[tuple[Any, Any], list[bool]]] = {
    "nearest": (_NEAREST, []), "linear": (_LINEAR, [False]), "aligned": (_LINEAR, [True]),
    "cubic": (_CUBIC, [False]), "cubic aligned": (_CUBIC, [True]),
}  # fmt: skip
"""By mode, ATen's kernels forward and backward, and what they are told beside sizes."""
_DTYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _fits(node: ir.Node) -> bool:
    """Whether ATen has a kernel for such numbers. A node without inputs stands for the operator as such."""
    return not node.inputs or (node.inputs[0] is not None and node.inputs[0].dtype in _DTYPES)


@lowers_composite("Interpolate", when=_fits)
def interpolate(e: Emitter, node: ir.Node) -> None:
    a, x = attributes(node), e.value(node.inputs[0])
    (kernel, _), told = _KERNELS[a["mode"]]
    e.compute(kernel, x, list(a["size"]), *told, outs=[e.out(node.outputs[0], x)], fresh=True)


@lowers_composite("InterpolateGrad", when=_fits)
def interpolate_grad(e: Emitter, node: ir.Node) -> None:
    a, dy = attributes(node), e.value(node.inputs[0])
    (_, kernel), told = _KERNELS[a["mode"]]
    dy = e.ordered(dy, order_of(dy.meta))
    sizes: list[Any] = [list(dy.shape[2:]), [*dy.shape[:2], *a["size"]]]
    e.compute(kernel, dy, *sizes, *told, outs=[e.out(node.outputs[0], dy)], fresh=True)
