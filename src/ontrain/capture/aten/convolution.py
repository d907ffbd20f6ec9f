"""Convolutions, plain and transposed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder, Dim
from ontrain.operators import Value
from ontrain.sizes import Size

__all__ = ["full"]


def full(value: int | Sequence[int], rank: int) -> list[int]:
    """Return one number a spatial axis."""
    numbers = [value] if isinstance(value, int) else [int(v) for v in value]
    return numbers * rank if len(numbers) == 1 else numbers


def _kernel(op: AtenBuilder) -> list[int]:
    return [int(size) for size in op.input_shape(1)[2:]]  # type: ignore[arg-type]


def _batched(op: AtenBuilder, x: Value, rank: int, make: Callable[[Value], Value]) -> Value:
    if len(op.input_shape(0)) == rank + 2:
        return make(x)
    return op.Squeeze(make(op.Unsqueeze(x, [0])), [0])


@aten("conv1d", "conv2d", "conv3d")
def conv(
    op: AtenBuilder, x: Value, weight: Value, bias: Value | None = None, stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1,
) -> Value:  # fmt: skip
    kernel: Any = op.input_shape(1)[2:]
    rank = len(kernel)
    dilations = full(dilation, rank)
    varies = any(isinstance(size, Size) for size in kernel)
    if isinstance(padding, str):
        if varies and padding == "same":
            raise op.refuse(
                "a convolution whose kernel size varies, with padding='same'", "its padding is a constant in a graph",
                "pad the input with torch.nn.functional.pad before the convolution",
            )  # fmt: skip
        whole = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilations, kernel, strict=True)]
        pads = [w // 2 for w in whole] + [w - w // 2 for w in whole]
    else:
        pads = full(padding, rank) * 2
    shape = None if varies else [int(size) for size in kernel]
    return _batched(op, x, rank, lambda batch: op.Conv(
        batch, weight, bias, kernel_shape=shape, strides=full(stride, rank), pads=pads, dilations=dilations,
        group=groups,
    ))  # fmt: skip


@aten("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    op: AtenBuilder, x: Value, weight: Value, bias: Value | None = None, stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0, output_padding: int | Sequence[int] = 0, groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Value:  # fmt: skip
    kernel = _kernel(op)
    rank = len(kernel)
    return _batched(op, x, rank, lambda batch: op.ConvTranspose(
        batch, weight, bias, kernel_shape=kernel, strides=full(stride, rank), pads=full(padding, rank) * 2,
        output_padding=full(output_padding, rank), dilations=full(dilation, rank), group=groups,
    ))  # fmt: skip


@aten("convolution", "_convolution")
def convolution(
    op: AtenBuilder, x: Value, weight: Value, bias: Value | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int, *_: object,
) -> Value:  # fmt: skip
    if transposed:
        return conv_transpose(op, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(op, x, weight, bias, stride, padding, dilation, groups)


@aten("im2col")
def im2col(
    op: AtenBuilder, x: Value, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
    stride: Sequence[int],
) -> Value:  # fmt: skip
    batched = len(op.input_shape(0)) == 4
    y = op.composite(
        "Im2Col", x if batched else op.Unsqueeze(x, [0]), kernel_shape=full(kernel_size, 2),
        dilations=full(dilation, 2), pads=full(padding, 2) * 2, strides=full(stride, 2),
    )  # fmt: skip
    return op.typed(y if batched else op.Squeeze(y, [0]), op.shape)


@aten("col2im")
def col2im(
    op: AtenBuilder, x: Value, output_size: Sequence[Dim], kernel_size: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], stride: Sequence[int],
) -> Value:  # fmt: skip
    batched = len(op.input_shape(0)) == 3
    y = op.Col2Im(
        x if batched else op.Unsqueeze(x, [0]), op.sizes(op.shape[-2:]), full(kernel_size, 2),
        dilations=full(dilation, 2), pads=full(padding, 2) * 2, strides=full(stride, 2),
    )  # fmt: skip
    return op.typed(y if batched else op.Squeeze(y, [0]), op.shape)
