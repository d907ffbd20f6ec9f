"""Losses of pairs of numbers and their gradients, in as few calls as ATen's own."""

from __future__ import annotations

import onnx_ir as ir
import torch

from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers_composite

__all__: list[str] = []

aten = torch.ops.aten
_EACH = 0
"""ATen's number of a loss that is not reduced."""


def _number(e: Emitter, dy: Buf, like: Buf) -> Buf:
    """dy in the shape of the operands: as a view where it is one number."""
    return dy if dy.shape == like.shape else e.view(dy, lambda t: t.expand(like.shape))


@lowers_composite("SquaredError")
def squared_error(e: Emitter, node: ir.Node) -> None:
    x, target = (e.value(v) for v in node.inputs)
    out = e.out(node.outputs[0], x, target)
    e.run(aten.mse_loss.out, x, target, _EACH, out=out, writes=[out])


@lowers_composite("SquaredErrorGrad")
def squared_error_grad(e: Emitter, node: ir.Node) -> None:
    dy, x, target = (e.value(v) for v in node.inputs)
    out = e.out(node.outputs[0], x, target)
    kernel = aten.mse_loss_backward.grad_input
    e.run(kernel, _number(e, dy, x), x, target, _EACH, grad_input=out, writes=[out])


@lowers_composite("Huber")
def huber(e: Emitter, node: ir.Node) -> None:
    x, target = (e.value(v) for v in node.inputs)
    a, out = attributes(node), e.out(node.outputs[0], x, target)
    kernel = aten.smooth_l1_loss if a.get("unit_slope", 0) else aten.huber_loss
    e.run(kernel.out, x, target, _EACH, a.get("delta", 1.0), out=out, writes=[out])


@lowers_composite("HuberGrad")
def huber_grad(e: Emitter, node: ir.Node) -> None:
    dy, x, target = (e.value(v) for v in node.inputs)
    a, out = attributes(node), e.out(node.outputs[0], x, target)
    unit = a.get("unit_slope", 0)
    kernel = aten.smooth_l1_loss_backward.grad_input if unit else aten.huber_loss_backward.out
    e.run(kernel, _number(e, dy, x), x, target, _EACH, a.get("delta", 1.0), grad_input=out, writes=[out])


@lowers_composite("SigmoidCrossEntropy")
def sigmoid_cross_entropy(e: Emitter, node: ir.Node) -> None:
    x, target = (e.value(v) for v in node.inputs)
    out = e.out(node.outputs[0], x, target)
    e.compute(
        aten.binary_cross_entropy_with_logits.default, x, target, None, None, _EACH, outs=[out], fresh=True
    )  # fmt: skip


@lowers_composite("SigmoidCrossEntropyGrad")
def sigmoid_cross_entropy_grad(e: Emitter, node: ir.Node) -> None:
    dy, x, target = (e.value(v) for v in node.inputs)
    out = e.out(node.outputs[0], x, target)
    e.call(torch.sigmoid, x, out=out)
    e.run(torch.Tensor.sub_, out, target, writes=[out])
    e.run(torch.Tensor.mul_, out, dy, writes=[out])


@lowers_composite("BinaryCrossEntropy")
def binary_cross_entropy(e: Emitter, node: ir.Node) -> None:
    x, target = (e.value(v) for v in node.inputs)
    out = e.out(node.outputs[0], x, target)
    e.run(aten.binary_cross_entropy.out, x, target, None, _EACH, out=out, writes=[out])


@lowers_composite("BinaryCrossEntropyGrad")
def binary_cross_entropy_grad(e: Emitter, node: ir.Node) -> None:
    dy, x, target = (e.value(v) for v in node.inputs)
    out = e.out(node.outputs[0], x, target)
    kernel = aten.binary_cross_entropy_backward.grad_input
    e.run(kernel, _number(e, dy, x), x, target, None, _EACH, grad_input=out, writes=[out])
