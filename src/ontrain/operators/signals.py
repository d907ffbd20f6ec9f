"""Fourier transforms and windows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ontrain.operators.agreement import size_of
from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.record import Stock, define
from ontrain.operators.shapes import static_dims

__all__: list[str] = []


def _transform_flops(node: ir.Node) -> int:
    """Of a fast transform: some five an element and halving."""
    return 5 * size_of(node.outputs[0]) * max(*static_dims(node.outputs[0]), 2).bit_length()


FROM_SIZE = "it makes a table from a size"

define("BlackmanWindow", settings=(0,), zero_gradient=FROM_SIZE)
define("DFT", settings=(1, 2), flops=_transform_flops, stock=Stock.COMPARED, ahead_from=1 << 12)
define("HammingWindow", settings=(0,), zero_gradient=FROM_SIZE)
define("HannWindow", settings=(0,), zero_gradient=FROM_SIZE)
define("MelWeightMatrix", settings=(0, 1, 2, 3, 4), zero_gradient=FROM_SIZE)
define("STFT", settings=(1, 3), weightless=(2,))


@gradient("DFT")
def dft(
    op: Op, dy: Value, x: Value, dft_length: Value | None = None, axis: Value | None = None,
    *, inverse: int = 0, onesided: int = 0,
) -> Adjoints:  # fmt: skip
    """The transform with the sign of its exponent turned, and its scale: [bins] to [places], both as complex numbers.

    Of half a spectrum the other half is zero going back. From a real signal of half a spectrum each bin but the first,
    and the middle one, stands for two.
    """
    shape = static_dims(x)
    place = _number(op, axis, -2) % len(shape)
    size, parts = shape[place], shape[-1]
    halved = bool(inverse and onesided)
    length = _number(op, dft_length, 2 * (size - 1) if halved else size)
    along = op.const(np.array(place))
    if halved:
        dx = op.DFT(dy, None, along, onesided=1)
        bins = np.arange(length // 2 + 1)
        weight = np.where((bins == 0) | (2 * bins == length), 1.0, 2.0) / length
        dx = dx * op.const(weight.reshape([-1, *[1] * (len(shape) - 1 - place)]), x.dtype)
        held = length // 2 + 1
    else:
        dx = op.DFT(dy, op.const(np.array(length)), along, inverse=1 - inverse)
        dx = dx * op.const(1 / length if inverse else float(length), x.dtype)
        held = length
    if held > size:
        dx = op.Slice(dx, [0], [size], [place])
    elif held < size:
        dx = op.Pad(dx, [*[0] * (len(shape) + place), size - held, *[0] * (len(shape) - 1 - place)])
    return dx if parts == 2 else op.Slice(dx, [0], [1], [len(shape) - 1]), None, None


def _number(op: Op, value: Value | None, default: int) -> int:
    if value is None:
        return default
    if value.const_value is None:
        raise op.refused("the graph computes the length or the axis of the transform", "make it a constant")
    return int(value.const_value.numpy())
