"""Gradients of convolutions, as convolutions (Dumoulin and Visin 2016, chapter 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__: list[str] = []


def _types(inputs: list[Any], **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    dy, x, w = inputs
    return [(x.dtype, x.shape), (w.dtype, w.shape), (w.dtype, ir.Shape([static_dims(dy)[1]]))]


@composite("ConvGrad", infer=_types)
def conv_grad(
    op: Builder, dy: Value, x: Value, w: Value,
    *, strides: Sequence[int] = (), dilations: Sequence[int] = (), pads: Sequence[int] = (), group: int = 1,
    output_mask: Sequence[int] = (1, 1, 1),
) -> tuple[Value | None, Value | None, Value | None]:  # fmt: skip
    """Adjoints of (x, w, bias) of Conv for dy [N, M, …], x [N, C, …], w [M, C/group, …]; absent where the mask is 0.

    `strides`, `dilations` and `pads` are the convolution's own, written out.
    """
    dx = dw = None
    if output_mask[0]:
        # What the strides leave over at the far end of x was never read; it is there all the same.
        short = [want - have for have, want in zip(_transposed_dims(dy, w, strides, dilations, pads),
                                                   static_dims(x)[2:], strict=True)]  # fmt: skip
        dx = op.ConvTranspose(dy, w, strides=strides, dilations=dilations, pads=pads, group=group, output_padding=short)
    if output_mask[1]:
        dw = _weight_grad(op, dy, x, w, strides, dilations, pads, group)
    return dx, dw, _bias_grad(op, dy) if output_mask[2] else None


@composite("ConvTransposeGrad", infer=_types)
def conv_transpose_grad(
    op: Builder, dy: Value, x: Value, w: Value,
    *, strides: Sequence[int] = (), dilations: Sequence[int] = (), pads: Sequence[int] = (), group: int = 1,
    output_mask: Sequence[int] = (1, 1, 1),
) -> tuple[Value | None, Value | None, Value | None]:  # fmt: skip
    """Adjoints of (x, w, bias) of ConvTranspose for dy [N, M, …], x [N, C, …], w [C, M/group, …]."""
    dx = dw = None
    if output_mask[0]:
        dx = _leading(op, op.Conv(dy, w, strides=strides, dilations=dilations, pads=pads, group=group), x)
    if output_mask[1]:
        dw = _weight_grad(op, x, dy, w, strides, dilations, pads, group)
    return dx, dw, _bias_grad(op, dy) if output_mask[2] else None


def _bias_grad(op: Builder, dy: Value) -> Value:
    return op.ReduceSum(dy, [0, *range(2, len(static_dims(dy)))], keepdims=0)


def _transposed_dims(
    dy: Value, w: Value, strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int]
) -> list[int]:
    """Spatial dimensions of ConvTranspose(dy, w) without output padding."""
    dims, kernel, rank = static_dims(dy)[2:], static_dims(w)[2:], len(strides)
    return [
        strides[i] * (dims[i] - 1) + (kernel[i] - 1) * dilations[i] + 1 - pads[i] - pads[rank + i] for i in range(rank)
    ]


def _weight_grad(
    op: Builder, small: Value, large: Value, w: Value,
    strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int], group: int,
) -> Value:  # fmt: skip
    """Adjoint [M, C/group, …] of the weight that convolves large [N, C, …] to small [N, M, …].

    The sum runs over samples and places, so these change places with channels: large is convolved with small, where
    strides act as dilations and dilations as strides.
    """
    n, c, *space = static_dims(large)
    m = static_dims(small)[1]
    axes = list(range(2, 2 + len(space)))
    images = op.Reshape(large, [n, group, c // group, *space])
    images = op.Reshape(op.Transpose(images, perm=[2, 1, 0, *(a + 1 for a in axes)]), [c // group, group * n, *space])
    filters = op.Transpose(small, perm=[1, 0, *axes])
    gradient = op.Conv(images, filters, strides=dilations, dilations=strides, pads=pads, group=group)
    assert static_dims(gradient)[:2] == (c // group, m)
    return _leading(op, op.Transpose(gradient, perm=[1, 0, *axes]), w)


def _leading(op: Builder, whole: Value, like: Value) -> Value:
    """The leading part of `whole` in the spatial shape of `like`; what lies behind was never read going forward."""
    have, want = static_dims(whole), static_dims(like)
    axes = [i for i in range(2, len(want)) if have[i] != want[i]]
    return op.Slice(whole, [0] * len(axes), [want[i] for i in axes], axes) if axes else whole
