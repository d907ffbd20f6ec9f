"""Conversions between element types, those of a few bits among them.

Numbers of fewer than eight bits lie in bytes, one each: `capture.arrays` says in which. What torch's versions convert
differently, or not at all, is rounded and cut off here. Source: https://onnx.ai/onnx/operators/onnx__Cast.html
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import torch

from ontrain.providers.torch.buffers import torch_dtype
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers

__all__: list[str] = []

Convert = Callable[[torch.Tensor], torch.Tensor]
_Type = ir.DataType
_FLOAT8 = (_Type.FLOAT8E4M3FN, _Type.FLOAT8E4M3FNUZ, _Type.FLOAT8E5M2, _Type.FLOAT8E5M2FNUZ)
_BEYOND: dict[ir.DataType, float] = {
    _Type.FLOAT8E4M3FN: 464.0,
    _Type.FLOAT8E4M3FNUZ: 248.0,
    _Type.FLOAT8E5M2FNUZ: 61440.0,
}
"""Halfway between the largest number and the next power or step: from there on there is only NaN."""
_TIES_TO_LARGEST = _Type.FLOAT8E4M3FN
"""Its largest number is even, so that halfway still rounds to it."""
_GRIDS = {"FLOAT4E2M1": (1, 0), "FLOAT6E2M3": (3, 0), "FLOAT6E3M2": (2, -2)}
"""By the type's name: bits of the mantissa, and the exponent of the smallest normal number."""


@lowers("Cast")
def cast(e: Emitter, node: ir.Node) -> None:
    x, (value,) = e.value(node.inputs[0]), node.outputs
    assert node.inputs[0] is not None and value.dtype is not None
    if node.inputs[0].dtype == value.dtype:
        e.bind(value, x)
        return
    a = attributes(node)
    convert = _conversion(value.dtype, bool(a.get("saturate", 1)), a.get("round_mode", "up"))
    out = e.out(value, x)
    if convert is None:
        e.run(torch.Tensor.copy_, out, x, writes=[out])
    else:
        e.compute(convert, x, outs=[out])


@lowers("BitCast")
def bit_cast(e: Emitter, node: ir.Node) -> None:
    dtype = torch_dtype(node.outputs[0].dtype)
    e.bind(node.outputs[0], e.view(e.value(node.inputs[0]), lambda t: t.view(dtype)))


def _conversion(target: ir.DataType, saturate: bool, round_mode: str) -> Convert | None:
    """The function that converts to `target`; None where torch's copy does."""
    if target in _FLOAT8:
        return _to_float8(target, saturate)
    if target == _Type.FLOAT8E8M0:
        return lambda x: _to_powers(x, saturate, round_mode)
    if target.name in _GRIDS:
        return lambda x: _on_grid(x, target)
    if target.bitwidth < 8 and target.is_integer():
        return lambda x: _wrapped(x, target)
    return None


def _to_float8(target: ir.DataType, saturate: bool) -> Convert:
    dtype, largest, beyond = torch_dtype(target), float(target.max), _BEYOND.get(target)

    def convert(x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        if saturate:
            return x.clamp(-largest, largest).to(dtype)
        if beyond is None:
            # Rounded like the larger numbers of the type; what is beyond these is infinite.
            return torch.where(x.abs() < 61440.0, x, x * torch.inf).to(dtype)
        size = x.abs()
        lost = size > beyond if target == _TIES_TO_LARGEST else size >= beyond
        return torch.where(lost, torch.nan, x.clamp(-largest, largest)).to(dtype)

    return convert


def _to_powers(x: torch.Tensor, saturate: bool, round_mode: str) -> torch.Tensor:
    """Powers of two, which E8M0 consists of."""
    mantissa, exponent = torch.frexp(x.float())  # in [0.5, 1)
    rounds_up = mantissa > {"up": 0.5, "nearest": 0.75 - 2**-24}.get(round_mode, 1.0)
    power = torch.where(x == 0, -127, exponent - 1 + rounds_up)
    number = ~torch.isnan(x) & ~torch.isinf(x)
    if not saturate:
        number = number & (power >= -127) & (power <= 127) & (x != 0)
    biased = power.clamp(-127, 127) + 127
    return torch.where(number, biased, 255).to(torch.uint8).view(torch.float8_e8m0fnu)


def _on_grid(x: torch.Tensor, target: ir.DataType) -> torch.Tensor:
    """Rounded to what a float of four or six bits can be; there are no infinities and no NaN, which becomes zero."""
    bits, smallest = _GRIDS[target.name]
    largest = float(target.max)
    x = torch.nan_to_num(x.float(), nan=-0.0).clamp(-largest, largest)
    exponent = (torch.frexp(x).exponent - 1).clamp_min(smallest)
    step = torch.ldexp(torch.ones_like(x), exponent - bits)
    return (torch.round(x / step) * step).to(torch_dtype(target))


def _wrapped(x: torch.Tensor, target: ir.DataType) -> torch.Tensor:
    """The lowest bits of a whole number."""
    whole = x.float().to(torch.int32) if x.dtype.itemsize == 1 and x.dtype.is_floating_point else x.to(torch.int64)
    low = whole & ((1 << target.bitwidth) - 1)
    if target.is_signed():
        low = torch.where(low > int(target.max), low - (1 << target.bitwidth), low)
    return low.to(torch_dtype(target))
