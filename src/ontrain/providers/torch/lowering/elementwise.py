"""Elementwise operators: one ATen call with `out=`, in place where an input dies."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import torch

from ontrain.internals import private
from ontrain.providers.torch.buffers import order_of
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import (
    Attributes,
    attributes,
    called_by_element,
    computed_by,
    lowers,
    lowers_composite,
)

__all__: list[str] = []

aten = torch.ops.aten


called_by_element(
    __name__,
    Abs=torch.abs, Acos=torch.acos, Acosh=torch.acosh, Asin=torch.asin, Asinh=torch.asinh, Atan=torch.atan,
    Atanh=torch.atanh, Ceil=torch.ceil, Cos=torch.cos, Cosh=torch.cosh, Erf=torch.erf, Exp=torch.exp,
    Floor=torch.floor, Log=torch.log, Neg=torch.neg, Not=torch.logical_not, Reciprocal=torch.reciprocal,
    Round=torch.round, Sigmoid=torch.sigmoid, Sign=torch.sign, Sin=torch.sin, Sinh=torch.sinh, Sqrt=torch.sqrt,
    Tan=torch.tan, Tanh=torch.tanh, BitwiseNot=torch.bitwise_not, Add=torch.add, Sub=torch.sub, Mul=torch.mul,
    And=torch.logical_and, Or=torch.logical_or, Xor=torch.logical_xor, BitwiseAnd=torch.bitwise_and,
    BitwiseOr=torch.bitwise_or, BitwiseXor=torch.bitwise_xor, Equal=torch.eq, Less=torch.lt, LessOrEqual=torch.le,
    Greater=torch.gt, GreaterOrEqual=torch.ge,
)  # fmt: skip


_TRAPS = (torch.int32, torch.int64)
"""The least of these divided by minus one ends the process: the processor has no answer."""


def _divides_safely(divisor: ir.Value | None) -> bool:
    known = None if divisor is None or divisor.const_value is None else divisor.const_value.numpy()
    return known is not None and not bool(np.any(known == -1))


def _divided(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    negated = y == -1
    if x.device.type == "cpu" and bool((negated & (x == torch.iinfo(x.dtype).min)).any()):
        raise OverflowError("the least integer is divided by minus one")
    quotient = torch.div(x, torch.where(negated, torch.ones_like(y), y), rounding_mode="trunc")
    return torch.where(negated, -x, quotient)


@lowers("Div")
def div(e: Emitter, node: ir.Node) -> None:
    x, y = (e.value(v) for v in node.inputs)
    if x.dtype.is_floating_point:
        e.call(torch.div, x, y, out=e.out(node.outputs[0], x, y), elementwise=True)
    elif x.dtype in _TRAPS and not _divides_safely(node.inputs[1]):
        e.compute(_divided, x, y, outs=[e.out(node.outputs[0])])
    else:
        # ONNX divides integers towards zero.
        e.call(torch.div, x, y, out=e.out(node.outputs[0], x, y), elementwise=True, rounding_mode="trunc")


@lowers("Mod")
def mod(e: Emitter, node: ir.Node) -> None:
    fn = torch.fmod if attributes(node).get("fmod") else torch.remainder
    x, y = (e.value(v) for v in node.inputs)
    e.call(fn, x, y, out=e.out(node.outputs[0], x, y), elementwise=True)


@lowers("Pow")
def power(e: Emitter, node: ir.Node) -> None:
    x, y = (e.value(v) for v in node.inputs)
    if x.dtype.is_floating_point:
        y = e.cast(y, x.dtype) if y.dtype != x.dtype else y
    elif y.dtype.is_floating_point:
        e.compute(lambda x, y: torch.pow(x.double(), y), x, y, outs=[e.out(node.outputs[0])])
        return
    e.call(torch.pow, x, y, out=e.out(node.outputs[0], x, y), elementwise=True)


@lowers("Min", "Max", "Sum", "Mean")
def variadic(e: Emitter, node: ir.Node) -> None:
    fn = {"Min": torch.minimum, "Max": torch.maximum}.get(node.op_type, torch.add)
    inputs = [e.value(v) for v in node.inputs]
    out = e.out(node.outputs[0], *inputs)
    if len(inputs) == 1:
        e.run(torch.Tensor.copy_, out, inputs[0], writes=[out])
    else:
        e.call(fn, inputs[0], inputs[1], out=out, elementwise=True)
        for more in inputs[2:]:
            e.run(fn, out, more, out=out, writes=[out])
    if node.op_type == "Mean":
        e.run(torch.Tensor.div_, out, float(len(inputs)), writes=[out])


@lowers("Where")
def where(e: Emitter, node: ir.Node) -> None:
    c, x, y = (e.value(v) for v in node.inputs)
    e.call(torch.where, c, x, y, out=e.out(node.outputs[0], c, x, y), elementwise=True)


@lowers("Clip")
@lowers_composite("Hardtanh")
def clip(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    bounds = [v for v in node.inputs[1:] if v is not None]
    if not bounds:
        e.bind(node.outputs[0], x)
        return
    if all(v.const_value is not None for v in bounds) and x.dtype.is_floating_point:
        # With numbers the kernel is vectorised; tensors are broadcast.
        numbers = [
            None if v is None or v.const_value is None else float(v.const_value.numpy()) for v in node.inputs[1:]
        ]
        e.call(aten.clamp.out, x, *(numbers + [None])[:2], out=e.out(node.outputs[0], x), elementwise=True)
        return
    low, high = ([e.value(v) if v is not None else None for v in node.inputs[1:]] + [None])[:2]
    e.call(aten.clamp.Tensor_out, x, low, high, out=e.out(node.outputs[0], x), elementwise=True)


@lowers_composite("ReplaceNan")
def replace_nan(e: Emitter, node: ir.Node) -> None:
    x, number = e.value(node.inputs[0]), attributes(node)["number"]
    e.call(torch.nan_to_num, x, number, math.inf, -math.inf, out=e.out(node.outputs[0], x), elementwise=True)


@lowers("BitShift")
def bit_shift(e: Emitter, node: ir.Node) -> None:
    left = attributes(node)["direction"] == "LEFT"
    e.compute(_shifted, *(e.value(v) for v in node.inputs), left, outs=[e.out(node.outputs[0])])


def _shifted(x: torch.Tensor, by: torch.Tensor, left: bool) -> torch.Tensor:
    """All bits are shifted out by as many as there are, or by a negative number; torch leaves open what is then."""
    bits = 8 * x.element_size()
    outside = (by < 0) | (by >= bits)
    if left:
        return torch.where(outside, torch.zeros_like(x), x << torch.where(outside, 0, by))
    return x >> torch.where(outside, bits - 1, by) if x.dtype.is_signed else torch.where(outside, 0, x >> by)


@lowers("IsNaN", "IsInf")
def is_special(e: Emitter, node: ir.Node) -> None:
    x, out = e.value(node.inputs[0]), e.out(node.outputs[0])
    if node.op_type == "IsNaN":
        e.call(torch.ne, x, x, out=out)
        return
    a = attributes(node)
    positive, negative = a.get("detect_positive", 1), a.get("detect_negative", 1)
    if positive and negative:
        x = e.call(torch.abs, x, out=e.new(x.shape, x.dtype))
    if positive or negative:
        e.call(torch.eq, x, math.inf if positive else -math.inf, out=out)
    else:
        e.run(torch.Tensor.fill_, out, False, writes=[out])


@lowers("Relu")
def relu(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    e.call(torch.clamp_min, x, 0, out=e.out(node.outputs[0], x), elementwise=True)


@lowers("Gelu")
def gelu(e: Emitter, node: ir.Node) -> None:
    approximate = attributes(node).get("approximate", "none")
    x = e.value(node.inputs[0])
    e.call(torch.nn.functional.gelu, x, approximate=approximate, out=e.out(node.outputs[0], x), elementwise=True)


@lowers_composite("Silu")
def silu(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    e.call(aten.silu.out, x, out=e.out(node.outputs[0], x), elementwise=True)


def _backward(
    op_type: str, kernel: Callable[..., object], arguments: Callable[[Attributes], tuple[object, ...]] = lambda a: (),
    **named: str,
) -> None:  # fmt: skip
    """Lower the gradient of an activation, of dy and the operand or result, to ATen's kernel.

    `named` says by which argument of the kernel an attribute goes.
    """

    def lower(e: Emitter, node: ir.Node) -> None:
        dy, x = (e.value(v) for v in node.inputs)
        a, out = attributes(node), e.out(node.outputs[0], dy, x)
        by_name = {argument: a[name] for argument, name in named.items() if name in a}
        e.run(kernel, dy, x, *arguments(a), **by_name, grad_input=out, writes=[out])
        e.program[-1].reuses = [dy, x]

    lowers_composite(op_type)(lower)


_backward("GeluGrad", aten.gelu_backward.grad_input, approximate="approximate")
_backward("SiluGrad", aten.silu_backward.grad_input)
_backward("ReluGrad", aten.threshold_backward.grad_input, lambda a: (0,))
_backward("LeakyReluGrad", aten.leaky_relu_backward.grad_input, lambda a: (a.get("alpha", 0.01), False))
_backward("HardtanhGrad", aten.hardtanh_backward.grad_input, lambda a: (a.get("low", -1.0), a.get("high", 1.0)))
_backward("TanhGrad", aten.tanh_backward.grad_input)
_backward("SigmoidGrad", aten.sigmoid_backward.grad_input)


@lowers_composite("EluGrad")
def elu_grad(e: Emitter, node: ir.Node) -> None:
    dy, x = (e.value(v) for v in node.inputs)
    out = e.out(node.outputs[0], dy, x)
    numbers = (attributes(node).get(name, 1.0) for name in ("alpha", "scale", "input_scale"))
    e.run(aten.elu_backward.grad_input, dy, *numbers, False, x, grad_input=out, writes=[out])
    e.program[-1].reuses = [dy, x]


@lowers_composite("HardSwishGrad")
def hard_swish_grad(e: Emitter, node: ir.Node) -> None:
    dy, x = (e.value(v) for v in node.inputs)
    # ATen's variant with out= makes a new tensor and copies it, too.
    e.compute(aten.hardswish_backward.default, dy, x, outs=[e.out(node.outputs[0], dy, x)], fresh=True)


@lowers_composite("MishGrad")
def mish_grad(e: Emitter, node: ir.Node) -> None:
    dy, x = (e.value(v) for v in node.inputs)
    e.compute(aten.mish_backward.default, dy, x, outs=[e.out(node.outputs[0], dy, x)], fresh=True)


@lowers_composite("HardSigmoidGrad")
def hard_sigmoid_grad(e: Emitter, node: ir.Node) -> None:
    dy, x = (e.value(v) for v in node.inputs)
    out = e.out(node.outputs[0], dy, x)
    a = attributes(node)
    alpha, beta = a.get("alpha", 0.2), a.get("beta", 0.5)
    if np.float32(alpha) == np.float32(1 / 6) and beta == 0.5:
        e.run(aten.hardsigmoid_backward.grad_input, dy, x, grad_input=out, writes=[out])
        return
    low, high = sorted((-beta / alpha, (1 - beta) / alpha)) if alpha else (0.0, 0.0)

    def run(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.where((x > low) & (x < high), dy * alpha, 0)

    e.compute(run, dy, x, outs=[out], fresh=True)


@lowers("LeakyRelu")
def leaky_relu(e: Emitter, node: ir.Node) -> None:
    slope = attributes(node).get("alpha", 0.01)
    x = e.value(node.inputs[0])
    e.call(aten.leaky_relu.out, x, slope, out=e.out(node.outputs[0], x), elementwise=True)


@lowers("HardSwish")
def hard_swish(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    e.call(aten.hardswish.out, x, out=e.out(node.outputs[0], x), elementwise=True)


def _elus(op_type: str, numbers: Callable[[Attributes], tuple[float, ...]]) -> None:
    """Lower a relative of Elu to ATen's, whose numbers are alpha, scale and input_scale."""

    def lower(e: Emitter, node: ir.Node) -> None:
        x = e.value(node.inputs[0])
        e.call(aten.elu.out, x, *numbers(attributes(node)), out=e.out(node.outputs[0], x), elementwise=True)

    lowers(op_type)(lower)


_elus("Elu", lambda a: (a.get("alpha", 1.0),))
_elus("Selu", lambda a: (a.get("alpha", 1.6732632423543772), a.get("gamma", 1.0507009873554805)))
_elus("Celu", lambda a: (a.get("alpha", 1.0), 1.0, 1 / a.get("alpha", 1.0)))


@lowers("PRelu")
def prelu(e: Emitter, node: ir.Node) -> None:
    x, slope = (e.value(v) for v in node.inputs)
    out = e.out(node.outputs[0], x)
    below = e.call(torch.clamp_max, x, 0, out=e.new(x.shape, x.dtype, order_of(x.meta)), elementwise=True)
    # ATen's selections take many times longer.
    e.call(torch.clamp_min, x, 0, out=out, elementwise=True)
    e.run(torch.Tensor.addcmul_, out, below, slope, writes=[out])


@lowers("HardSigmoid")
def hard_sigmoid(e: Emitter, node: ir.Node) -> None:
    a, x = attributes(node), e.value(node.inputs[0])
    out, beta = e.out(node.outputs[0], x), torch.tensor(a.get("beta", 0.5), dtype=x.dtype)
    e.run(torch.add, e.constant(beta), x, alpha=float(a.get("alpha", 0.2)), out=out, writes=[out])
    e.run(torch.clamp_, out, 0, 1, writes=[out])


@lowers("Softplus")
def softplus(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    e.call(aten.softplus.out, x, 1.0, 50.0, out=e.out(node.outputs[0], x), elementwise=True)


computed_by(
    Mish=lambda a, x: torch.nn.functional.mish(x),
    Softsign=lambda a, x: torch.nn.functional.softsign(x),
    ThresholdedRelu=lambda a, x: torch.where(x > a.get("alpha", 1.0), x, 0),
)


@lowers("Softmax", "LogSoftmax")
def softmax(e: Emitter, node: ir.Node) -> None:
    fn = torch.softmax if node.op_type == "Softmax" else torch.log_softmax
    x = e.value(node.inputs[0])
    e.call(fn, x, attributes(node).get("axis", -1), out=e.out(node.outputs[0]), elementwise=True)


@lowers_composite("SoftmaxGrad", "LogSoftmaxGrad")
def softmax_grad(e: Emitter, node: ir.Node) -> None:
    dy, y = (e.contiguous(e.value(v)) for v in node.inputs)
    axis = attributes(node).get("axis", -1)
    place = e.out(node.outputs[0])
    # ATen writes the gradient as into dense memory, whatever the strides of `out` are.
    out = place if place.meta.is_contiguous() else e.new(place.shape, place.dtype)
    if node.op_type == "SoftmaxGrad":
        e.run(private("torch.ops.aten._softmax_backward_data").out, dy, y, axis, y.dtype, grad_input=out, writes=[out])
    else:
        e.run(private("torch.ops.aten._log_softmax_backward_data").out, dy, y, axis, y.dtype, out=out, writes=[out])
    # ATen's row kernels read a row before they write it, so dy's memory can be the result's.
    e.program[-1].reuses = [dy]
    if out is not place:
        e.copy(out, place)
