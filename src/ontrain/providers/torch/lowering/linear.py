"""Linear layers by oneDNN, with what follows them computed where the result is made."""

from __future__ import annotations

import math
from functools import partial

import onnx_ir as ir
import torch

from ontrain.operators import operand_of
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.instructions import Function
from ontrain.providers.torch.lowering.finiteness import activations_by_aten, doubt
from ontrain.providers.torch.lowering.product import Factors, multiply
from ontrain.providers.torch.lowering.registry import attributes, lowers_composite
from ontrain.providers.torch.weights import LINEAR

__all__ = ["multiply_constant"]

_WORTH = 1 << 20
"""Floating-point operations from which on oneDNN's call pays for itself, for more than one row."""
_Applied = tuple[str, list[float], str]
"""What oneDNN applies to a product, with its numbers and its algorithm."""
_NOTHING: _Applied = "none", [], ""
_OTHER_NAMES = {"": "none", "silu": "swish"}
"""What oneDNN calls activations otherwise."""
_FUNCTIONS: dict[str, Function] = {
    "relu": partial(torch.clamp_min, min=0), "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "gelu": torch.nn.functional.gelu, "silu": torch.ops.aten.silu.out,
}  # fmt: skip
"""The activations by ATen."""


def multiply_constant(e: Emitter, f: Factors) -> bool:
    """Emit a product with a weight that never changes, if oneDNN keeps the weight in an order of its own.

    Args:
        e: where the product is emitted.
        f: the product; nothing is added to it but a bias.
    """
    matrix = _matrix(e, f)
    if matrix is not None:
        _emit(e, f, matrix, None, _NOTHING)
    return matrix is not None


def _matrix(e: Emitter, f: Factors) -> torch.Tensor | None:
    """The weight in oneDNN's order; None where it may change, and where torch is as fast, or was asked for."""
    tuning = e.settings.tuning
    if e.device.type != "cpu" or tuning is None or not tuning.free or f.x.dtype != torch.float32:
        return None
    worth = f.sizes[0] > 1 and 2 * math.prod(f.sizes) >= _WORTH
    weight = e.unchanging(f.w) if worth else None
    return None if weight is None else e.weights(f.w).matrix(weight.t())


def _emit(
    e: Emitter, f: Factors, weight: torch.Tensor, z: Buf | None, applied: _Applied, doubtful: Buf | None = None
) -> None:  # fmt: skip
    """Emit oneDNN's product. A weight in its own order has no memory that a plan could name."""
    x, z, afterwards = e.contiguous(f.x), None if z is None else e.contiguous(z), activations_by_aten(applied[0])

    def run(
        x: torch.Tensor, bias: torch.Tensor | None, z: torch.Tensor | None, doubtful: torch.Tensor | None
    ) -> torch.Tensor:
        later = afterwards if doubtful is not None and doubtful else None
        product: torch.Tensor = (
            LINEAR(x, weight, bias, *(applied if later is None else _NOTHING))
            if z is None
            else LINEAR.binary(x, z, weight, bias, "add")
        )
        if later is not None:
            later(product)
        return product

    e.compute(run, x, f.bias, z, doubtful, outs=[f.out], fresh=True)
    e.program[-1].factors = f.x, f.w, f.out


def _applies(node: ir.Node) -> bool:
    """Whether a sum is not activated as well, which oneDNN does not do.

    A node without inputs stands for the operator as such.
    """
    adds = operand_of(node, 3) is not None
    return not adds or not attributes(node).get("activation")


@lowers_composite("Linear", when=_applies)
def linear(e: Emitter, node: ir.Node) -> None:
    a = attributes(node)
    activation = str(a.get("activation", "")).lower()
    x, w = e.value(node.inputs[0]), e.value(node.inputs[1])
    bias, z = (e.value(v) if v is not None else None for v in (*node.inputs[2:], None, None)[:2])
    out = e.out(node.outputs[0])
    f = Factors(x, e.view(w, torch.t) if a.get("transB") else w, out, bias)
    form = a.get("approximate", "none") if activation == "gelu" else ""
    matrix = _matrix(e, f)
    if matrix is not None:
        name = _OTHER_NAMES.get(activation, activation)
        _emit(e, f, matrix, z, (name, [], form), doubt(e, node) if activations_by_aten(name) else None)
        return
    multiply(e, f)
    if z is not None:
        e.call(torch.add, out, z, out=out)
    if activation:
        function = _FUNCTIONS[activation]
        e.call(partial(function, approximate=form) if form else function, out, out=out)
