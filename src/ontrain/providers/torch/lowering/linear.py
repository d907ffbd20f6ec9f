"""Linear layers by oneDNN, with what follows them computed where the result is made."""

from __future__ import annotations

import math
from functools import partial

import onnx_ir as ir
import torch

from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.instructions import Function
from ontrain.providers.torch.lowering.product import Factors, multiply
from ontrain.providers.torch.lowering.registry import attributes, lowers_composite
from ontrain.providers.torch.weights import LINEAR

__all__ = ["multiply_constant"]

_WORTH = 1 << 17
"""Floating-point operations from which on oneDNN's call pays for itself."""
_APPLIED = {"": "none", "Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Gelu": "gelu", "Silu": "swish"}
"""What oneDNN calls the activations."""
_FUNCTIONS: dict[str, Function] = {
    "Relu": partial(torch.clamp_min, min=0), "Sigmoid": torch.sigmoid, "Tanh": torch.tanh,
    "Gelu": torch.nn.functional.gelu, "Silu": torch.ops.aten.silu.out,
}  # fmt: skip
"""The activations by ATen."""


def multiply_constant(
    e: Emitter, x: Buf, weight: ir.Value | None, out: Buf, bias: Buf | None, *, transposed: bool
) -> bool:
    """Emit the product with a weight that never changes, if oneDNN keeps it in an order of its own.

    Args:
        e: where the product is emitted.
        x: [R, K].
        weight: [K, C].
        out: [R, C].
        bias: [C], or None.
        transposed: whether the weight is [C, K] instead.
    """
    matrix = _matrix(e, x, weight, out, transposed=transposed)
    if matrix is None or not (bias is None or len(bias.shape) == 1):
        return False
    _emit(e, x, matrix, bias, None, ("none", [], ""), out)
    return True


def _matrix(e: Emitter, x: Buf, weight: ir.Value | None, out: Buf, *, transposed: bool) -> torch.Tensor | None:
    """The weight in oneDNN's order; None where it may change, and where torch is as fast, or was asked for."""
    tuning = e.settings.tuning
    if e.device.type != "cpu" or tuning is None or not tuning.free or x.dtype != torch.float32:
        return None
    return e.matrix(weight, transposed=transposed) if 2 * math.prod(out.shape) * x.shape[1] >= _WORTH else None


def _emit(
    e: Emitter, x: Buf, w: Buf | torch.Tensor, bias: Buf | None, z: Buf | None, applied: tuple[str, list[float], str],
    out: Buf,
) -> None:  # fmt: skip
    """Emit oneDNN's product; a weight in its own order has no memory that a plan could name."""
    own = w if isinstance(w, torch.Tensor) else None
    x, z = e.contiguous(x), None if z is None else e.contiguous(z)

    def run(x: torch.Tensor, w: torch.Tensor | None, bias: torch.Tensor | None, z: torch.Tensor | None) -> torch.Tensor:
        w = own if w is None else w
        result: torch.Tensor = LINEAR(x, w, bias, *applied) if z is None else LINEAR.binary(x, z, w, bias, "add")
        return result

    e.compute(run, x, None if own is not None else w, bias, z, outs=[out], fresh=True)


def _applies(node: ir.Node) -> bool:
    """Whether oneDNN multiplies such numbers. A node without inputs stands for the operator as such."""
    if not node.inputs:
        return True
    x = node.inputs[0]
    adds = len(node.inputs) > 3 and node.inputs[3] is not None
    known = not adds or not attributes(node).get("activation")
    return LINEAR is not None and x is not None and x.dtype == ir.DataType.FLOAT and known


@lowers_composite("Linear", when=_applies, devices=("cpu",))
def linear(e: Emitter, node: ir.Node) -> None:
    a = attributes(node)
    transposed = bool(a.get("transB"))
    x, w = e.value(node.inputs[0]), node.inputs[1]
    bias, z = (e.value(v) if v is not None else None for v in (*node.inputs[2:], None, None)[:2])
    out = e.out(node.outputs[0])
    matrix = _matrix(e, x, w, out, transposed=transposed)
    activation = a.get("activation", "")
    if matrix is not None:
        applied = _APPLIED[activation], [], a.get("approximate", "none") if activation == "Gelu" else ""
        _emit(e, x, matrix, bias, z, applied, out)
        return
    factor = e.value(w)
    multiply(e, Factors(x, e.view(factor, torch.t) if transposed else factor, out, bias))
    if z is not None:
        e.call(torch.add, out, z, out=out)
    if activation:
        form = {"approximate": a.get("approximate", "none")} if activation == "Gelu" else {}
        e.call(_FUNCTIONS[activation], out, out=out, **form)
