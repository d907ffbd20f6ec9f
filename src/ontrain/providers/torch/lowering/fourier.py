"""Fourier transforms by PyTorch's fast ones, in single and double precision; others are products with matrices."""

from __future__ import annotations

import onnx_ir as ir
import torch

from ontrain.operators import static_dims
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers
from ontrain.providers.torch.lowering.shape import constant_ints

__all__: list[str] = []

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _transforms(node: ir.Node) -> bool:
    """Whether PyTorch does. A node without inputs stands for the operator as such."""
    if not node.inputs or node.inputs[0] is None:
        return True
    settings = [v for v in node.inputs[1:] if v is not None]
    return node.inputs[0].dtype in _TYPES and all(v.const_value is not None for v in settings)


@lowers("DFT", when=_transforms)
def dft(e: Emitter, node: ir.Node) -> None:
    a, rank = attributes(node), len(static_dims(node.outputs[0]))
    settings = map(constant_ints, [*node.inputs[1:], None, None][:2])
    length, axis = (numbers[0] if numbers else None for numbers in settings)
    axis = (-2 if axis is None else axis) % rank
    inverse, onesided = bool(a.get("inverse", 0)), bool(a.get("onesided", 0))
    x, out = e.value(node.inputs[0]), e.out(node.outputs[0])
    e.compute(_transform, x, length, axis, inverse, onesided, outs=[out], fresh=True)


def _transform(x: torch.Tensor, length: int | None, axis: int, inverse: bool, onesided: bool) -> torch.Tensor:
    """x [..., 1 or 2] along an axis; half of a spectrum where it is onesided, which is then of a real signal."""
    real = x.shape[-1] == 1
    if onesided and real and not inverse:
        return torch.view_as_real(torch.fft.rfft(x[..., 0], length, axis))
    z = x[..., 0] if real else torch.view_as_complex(x.contiguous())
    if onesided and inverse:
        signal: torch.Tensor = torch.fft.irfft(z, length, axis)
        return signal[..., None]
    # Of a real signal the inverse is a conjugate that is not computed yet.
    y = torch.view_as_real((torch.fft.ifft if inverse else torch.fft.fft)(z, length, axis).resolve_conj())
    return y.narrow(axis, 0, y.shape[axis] // 2 + 1) if onesided else y
