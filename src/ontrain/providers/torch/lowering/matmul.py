"""Matrix products: 2-D through `mm`/`addmm`, batches through `bmm`, transposes as strides."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from ontrain.graph import static_dims
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers
from ontrain.providers.torch.tuning import FORMULATIONS

__all__: list[str] = []


@lowers("Gemm")
def gemm(e: Emitter, node: ir.Node) -> None:
    a = attributes(node)
    x, w = e.value(node.inputs[0]), e.value(node.inputs[1])
    x = e.view(x, torch.t) if a.get("transA") else x
    w = e.view(w, torch.t) if a.get("transB") else w
    alpha, beta = a.get("alpha", 1.0), a.get("beta", 1.0)
    scales = {name: scale for name, scale in (("alpha", alpha), ("beta", beta)) if scale != 1.0}
    out = e.out(node.outputs[0])
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = e.value(node.inputs[2])
        if scales or not _otherwise(e, x, w, bias, out):
            e.call(torch.addmm, bias, x, w, out=out, **scales)
    elif (before := e.added_to(node.outputs[0])) is not None:
        e.call(torch.addmm, before, x, w, out=out, alpha=alpha)
    elif alpha != 1.0 or not _otherwise(e, x, w, None, out):
        e.call(torch.mm, x, w, out=out)
        if alpha != 1.0:
            e.run(torch.Tensor.mul_, out, alpha, writes=[out])


@lowers("MatMul")
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
        before = e.added_to(node.outputs[0])
        if before is not None:
            e.call(torch.addmm, before, flat, y, out=out)
            return
        out = e.view(out, lambda t: t.view(flat.shape[0], columns))
        if not _otherwise(e, flat, y, None, out):
            e.call(torch.mm, flat, y, out=out)
        return
    lead = static_dims(node.outputs[0])[: max(len(x.shape), len(y.shape)) - 2]
    batch = int(torch.Size(lead).numel())
    e.call(torch.bmm, batched(e, x, lead), batched(e, y, lead), out=e.view(out, lambda t: t.view(batch, rows, columns)))


def _otherwise(e: Emitter, x: Buf, w: Buf, bias: Buf | None, out: Buf) -> bool:
    """Emit x · w + bias in another formulation than ATen's where one was measured to be faster; say whether."""
    tuning = e.settings.tuning
    plain = e.device.type == "cpu" and x.dtype == torch.float32 and x.meta.is_contiguous() and out.meta.is_contiguous()
    if tuning is None or not plain or (bias is not None and len(bias.shape) != 1):
        return False
    by_column = w.meta.t().is_contiguous()
    if not by_column and not w.meta.is_contiguous():
        return False
    name = tuning.fastest((*x.shape, w.shape[1]), by_column, bias is not None)  # type: ignore[arg-type]
    if name == "aten":
        return False
    e.compute(FORMULATIONS[name], x, w, bias, outs=[out], fresh=True)
    return True


def batched(e: Emitter, x: Buf, lead: tuple[int, ...]) -> Buf:
    """Return x as [batch, rows, columns] with its leading axes broadcast to `lead`."""
    x = e.view(x, lambda t: t.expand(*lead, *t.shape[-2:]))
    return e.reshape(x, (int(torch.Size(lead).numel()), *x.shape[-2:]))


@lowers("Einsum")
def einsum(e: Emitter, node: ir.Node) -> None:
    inputs = [e.value(v) for v in node.inputs]
    assert static_dims(node.outputs[0]) is not None
    e.compute(torch.einsum, attributes(node)["equation"], *inputs, outs=[e.out(node.outputs[0])])


@lowers("Det")
def det(e: Emitter, node: ir.Node) -> None:
    e.compute(torch.linalg.det, e.value(node.inputs[0]), outs=[e.out(node.outputs[0])])
