"""Matrix products: 2-D through `mm`/`addmm`, batches through `bmm`, transposes as strides."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from ontrain.graph import static_dims
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.linear import multiply_constant
from ontrain.providers.torch.lowering.product import Factors, multiply
from ontrain.providers.torch.lowering.registry import attributes, lowers
from ontrain.providers.torch.lowering.single_precision import in_single_precision

__all__: list[str] = []


@lowers("Gemm", adds=True)
def gemm(e: Emitter, node: ir.Node) -> None:
    a = attributes(node)
    x, w = e.value(node.inputs[0]), e.value(node.inputs[1])
    x = e.view(x, torch.t) if a.get("transA") else x
    w = e.view(w, torch.t) if a.get("transB") else w
    alpha, beta = a.get("alpha", 1.0), a.get("beta", 1.0)
    scales = {name: scale for name, scale in (("alpha", alpha), ("beta", beta)) if scale != 1.0}
    out = e.out(node.outputs[0])
    bias = e.optional(node, 2)
    before = e.added_to(node.outputs[0])
    if bias is not None and (scales or len(bias.shape) != 1):
        e.call(torch.addmm, bias, x, w, out=out, **scales)
    elif before is not None and alpha != 1.0:
        e.call(torch.addmm, before, x, w, out=out, alpha=alpha)
    else:
        f, constant = Factors(x, w, out, bias, before), before is None and not scales
        if constant and multiply_constant(e, f):
            return
        multiply(e, f)
        if alpha != 1.0:
            e.run(torch.Tensor.mul_, out, alpha, writes=[out])


@lowers("MatMul", adds=True)
def matmul(e: Emitter, node: ir.Node) -> None:
    x, y = e.value(node.inputs[0]), e.value(node.inputs[1])
    if len(x.shape) == 1:
        x = e.view(x, lambda t: t.unsqueeze(0))
    if len(y.shape) == 1:
        y = e.view(y, lambda t: t.unsqueeze(1))
    out = e.out(node.outputs[0])
    rows, columns = x.shape[-2], y.shape[-1]
    if len(y.shape) == 2:
        flat = e.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
        result = e.view(out, lambda t: t.view(flat.shape[0], columns))
        f = Factors(flat, y, result, before=e.added_to(node.outputs[0]))
        if f.before is not None or not multiply_constant(e, f):
            multiply(e, f)
        return
    lead = static_dims(node.outputs[0])[: max(len(x.shape), len(y.shape)) - 2]
    batch = int(torch.Size(lead).numel())
    e.call(torch.bmm, batched(e, x, lead), batched(e, y, lead), out=e.view(out, lambda t: t.view(batch, rows, columns)))


def batched(e: Emitter, x: Buf, lead: tuple[int, ...]) -> Buf:
    """Return x as [batch, rows, columns] with its leading axes broadcast to `lead`, in an order that BLAS takes."""
    x = e.view(x, lambda t: t.expand(*lead, *t.shape[-2:]))
    matrices = e.reshape(x, (int(torch.Size(lead).numel()), *x.shape[-2:]))
    return matrices if _rows_or_columns(matrices.meta) else e.contiguous(matrices)


def _rows_or_columns(matrices: torch.Tensor) -> bool:
    """Whether rows or columns are without gaps; else ATen copies and multiplies the matrices of a batch one by one."""
    (rows, columns), (down, along) = matrices.shape[1:], matrices.stride()[1:]
    return (along == 1 and down >= columns) or (down == 1 and along >= rows)


@lowers("Det")
def det(e: Emitter, node: ir.Node) -> None:
    e.compute(in_single_precision(torch.linalg.det), e.value(node.inputs[0]), outs=[e.out(node.outputs[0])])
