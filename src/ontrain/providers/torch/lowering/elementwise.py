"""Elementwise operators: one ATen call with `out=`, in place where an input dies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.internals import private
from ontrain.providers.torch.buffers import torch_dtype
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers, lowers_composite

__all__: list[str] = []

aten = torch.ops.aten

_SAME_NAME: dict[str, Callable[..., Any]] = {
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Asin": torch.asin, "Asinh": torch.asinh,
    "Atan": torch.atan, "Atanh": torch.atanh, "Ceil": torch.ceil, "Cos": torch.cos, "Cosh": torch.cosh,
    "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor, "Log": torch.log, "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal, "Round": torch.round, "Sigmoid": torch.sigmoid, "Sign": torch.sign,
    "Sin": torch.sin, "Sinh": torch.sinh, "Sqrt": torch.sqrt, "Tan": torch.tan, "Tanh": torch.tanh,
    "BitwiseNot": torch.bitwise_not,
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Pow": torch.pow,
    "And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor,
    "BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or, "BitwiseXor": torch.bitwise_xor,
    "Equal": torch.eq, "Less": torch.lt, "LessOrEqual": torch.le, "Greater": torch.gt, "GreaterOrEqual": torch.ge,
}  # fmt: skip


def _simple(fn: Callable[..., Any]) -> Callable[[Emitter, ir.Node], None]:
    def lower(e: Emitter, node: ir.Node) -> None:
        inputs = [e.value(v) for v in node.inputs]
        e.call(fn, *inputs, out=e.out(node.outputs[0]), elementwise=True)

    return lower


for _op, _fn in _SAME_NAME.items():
    lowers(_op)(_simple(_fn))


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
        e.call(torch.div, x, y, out=e.out(node.outputs[0]), elementwise=True)
    elif x.dtype in _TRAPS and not _divides_safely(node.inputs[1]):
        e.compute(_divided, x, y, outs=[e.out(node.outputs[0])])
    else:
        # ONNX divides integers towards zero.
        e.call(torch.div, x, y, out=e.out(node.outputs[0]), elementwise=True, rounding_mode="trunc")


@lowers("Mod")
def mod(e: Emitter, node: ir.Node) -> None:
    fn = torch.fmod if attributes(node).get("fmod") else torch.remainder
    x, y = (e.value(v) for v in node.inputs)
    e.call(fn, x, y, out=e.out(node.outputs[0]), elementwise=True)


@lowers("Min", "Max", "Sum", "Mean")
def variadic(e: Emitter, node: ir.Node) -> None:
    fn = {"Min": torch.minimum, "Max": torch.maximum}.get(node.op_type, torch.add)
    inputs = [e.value(v) for v in node.inputs]
    out = e.out(node.outputs[0])
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
    e.call(torch.where, c, x, y, out=e.out(node.outputs[0]), elementwise=True)


@lowers("Clip")
def clip(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    bounds = [e.value(v) if v is not None else None for v in node.inputs[1:]]
    low, high = (bounds + [None, None])[:2]
    e.call(aten.clamp.Tensor_out, x, low, high, out=e.out(node.outputs[0]), elementwise=True)


@lowers("Cast")
def cast(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    if x.dtype == torch_dtype(node.outputs[0].dtype):
        e.bind(node.outputs[0], x)
        return
    out = e.out(node.outputs[0])
    e.run(torch.Tensor.copy_, out, x, writes=[out])


@lowers("BitShift")
def bit_shift(e: Emitter, node: ir.Node) -> None:
    fn = torch.bitwise_left_shift if attributes(node)["direction"] == "LEFT" else torch.bitwise_right_shift
    x, by = (e.value(v) for v in node.inputs)
    e.call(fn, x, by, out=e.out(node.outputs[0]), elementwise=True)


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
    e.call(torch.clamp_min, e.value(node.inputs[0]), 0, out=e.out(node.outputs[0]), elementwise=True)


@lowers("Gelu")
def gelu(e: Emitter, node: ir.Node) -> None:
    approximate = attributes(node).get("approximate", "none")
    x = e.value(node.inputs[0])
    e.call(torch.nn.functional.gelu, x, approximate=approximate, out=e.out(node.outputs[0]), elementwise=True)


@lowers_composite("GeluGrad")
def gelu_grad(e: Emitter, node: ir.Node) -> None:
    dy, x = (e.value(v) for v in node.inputs)
    approximate = attributes(node).get("approximate", "none")
    out = e.out(node.outputs[0])
    e.run(aten.gelu_backward.grad_input, dy, x, approximate=approximate, grad_input=out, writes=[out])
    e.program[-1].reuses = [dy, x]


@lowers_composite("Silu")
def silu(e: Emitter, node: ir.Node) -> None:
    e.call(aten.silu.out, e.value(node.inputs[0]), out=e.out(node.outputs[0]), elementwise=True)


@lowers_composite("SiluGrad")
def silu_grad(e: Emitter, node: ir.Node) -> None:
    dy, x = (e.value(v) for v in node.inputs)
    out = e.out(node.outputs[0])
    e.run(aten.silu_backward.grad_input, dy, x, grad_input=out, writes=[out])
    e.program[-1].reuses = [dy, x]


@lowers("LeakyRelu")
def leaky_relu(e: Emitter, node: ir.Node) -> None:
    slope = attributes(node).get("alpha", 0.01)
    e.call(aten.leaky_relu.out, e.value(node.inputs[0]), slope, out=e.out(node.outputs[0]), elementwise=True)


@lowers("Elu")
def elu(e: Emitter, node: ir.Node) -> None:
    alpha = attributes(node).get("alpha", 1.0)
    e.call(aten.elu.out, e.value(node.inputs[0]), alpha, out=e.out(node.outputs[0]), elementwise=True)


@lowers("Softplus")
def softplus(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    e.call(aten.softplus.out, x, 1.0, 50.0, out=e.out(node.outputs[0]), elementwise=True)


@lowers("HardSwish", "Mish", "HardSigmoid", "Softsign", "Selu", "Celu", "ThresholdedRelu", "PRelu")
def by_function(e: Emitter, node: ir.Node) -> None:
    a = attributes(node)
    functions: dict[str, Callable[..., Any]] = {
        "HardSwish": torch.nn.functional.hardswish,
        "Mish": torch.nn.functional.mish,
        "HardSigmoid": lambda x: torch.clamp(x * a.get("alpha", 0.2) + a.get("beta", 0.5), 0, 1),
        "Softsign": torch.nn.functional.softsign,
        "Selu": lambda x: _selu(x, a.get("alpha", 1.6732632423543772), a.get("gamma", 1.0507009873554805)),
        "Celu": lambda x: torch.nn.functional.celu(x, a.get("alpha", 1.0)),
        "ThresholdedRelu": lambda x: torch.where(x > a.get("alpha", 1.0), x, 0),
        "PRelu": lambda x, slope: torch.where(x < 0, x * slope, x),
    }
    e.compute(functions[node.op_type], *(e.value(v) for v in node.inputs), outs=[e.out(node.outputs[0])])


def _selu(x: torch.Tensor, alpha: float, gamma: float) -> torch.Tensor:
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


@lowers("Softmax", "LogSoftmax")
def softmax(e: Emitter, node: ir.Node) -> None:
    fn = torch.softmax if node.op_type == "Softmax" else torch.log_softmax
    x = e.value(node.inputs[0])
    e.call(fn, x, attributes(node).get("axis", -1), out=e.out(node.outputs[0]), elementwise=True)


@lowers_composite("SoftmaxGrad", "LogSoftmaxGrad")
def softmax_grad(e: Emitter, node: ir.Node) -> None:
    dy, y = (e.value(v) for v in node.inputs)
    axis = attributes(node).get("axis", -1)
    out = e.out(node.outputs[0])
    if node.op_type == "SoftmaxGrad":
        e.run(private("torch.ops.aten._softmax_backward_data").out, dy, y, axis, y.dtype, grad_input=out, writes=[out])
    else:
        e.run(private("torch.ops.aten._log_softmax_backward_data").out, dy, y, axis, y.dtype, out=out, writes=[out])
    # ATen's row kernels read a row before they write it, so dy's memory can be the result's.
    e.program[-1].reuses = [dy]
