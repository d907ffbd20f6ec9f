"""Pooling and resizing over the spatial axes."""

from __future__ import annotations

from typing import Any

from ontrain.capture.aten.convolution import full
from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder

__all__: list[str] = []


def _spatial(op: AtenBuilder) -> int:
    name = str(op.node.target)
    return next(rank for rank in (1, 2, 3) if f"{rank}d" in name)


def _batched(op: AtenBuilder, x: Any, rank: int) -> tuple[Any, bool]:
    batched = len(op.input_shape(0)) == rank + 2
    return (x if batched else op.Unsqueeze(x, [0])), batched


@aten("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    op: AtenBuilder, x: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    rank = _spatial(op)
    kernel = full(kernel_size, rank)
    x, batched = _batched(op, x, rank)
    # The gradient reads the indices; torch's own count within a plane, ONNX's within the whole tensor.
    y, _ = op.MaxPool(
        x, kernel_shape=kernel, strides=full(stride, rank) if stride else kernel, pads=full(padding, rank) * 2,
        dilations=full(dilation, rank), ceil_mode=int(ceil_mode), outputs=2,
    )  # fmt: skip
    y = y if batched else op.Squeeze(y, [0])
    return (y, None) if "indices" in str(op.node.target) else y


@aten("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    op: AtenBuilder, x: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    if divisor_override is not None:
        raise op.refuse("average pooling with divisor_override", "ONNX has no such option", "scale the result instead")
    rank = _spatial(op)
    kernel = full(kernel_size, rank)
    x, batched = _batched(op, x, rank)
    y = op.AveragePool(
        x, kernel_shape=kernel, strides=full(stride, rank) if stride else kernel, pads=full(padding, rank) * 2,
        ceil_mode=int(ceil_mode), count_include_pad=int(count_include_pad),
    )  # fmt: skip
    return y if batched else op.Squeeze(y, [0])


@aten("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d",
      "_adaptive_avg_pool3d")  # fmt: skip
def adaptive_avg_pool(op: AtenBuilder, x: Any, output_size: Any) -> Any:
    rank = _spatial(op)
    have, want = op.input_shape(0)[-rank:], op.shape[-rank:]
    if all(size == 1 for size in want):
        return op.ReduceMean(x, list(range(-rank, 0)), keepdims=1)
    if have == want:
        return x
    return _divided(op, x, rank, "AveragePool")


@aten("adaptive_max_pool1d", "adaptive_max_pool2d")
def adaptive_max_pool(op: AtenBuilder, x: Any, output_size: Any) -> Any:
    return _divided(op, x, _spatial(op), "MaxPool"), None


def _divided(op: AtenBuilder, x: Any, rank: int, op_type: str) -> Any:
    """Pool with windows of equal size, which torch's are when the sizes divide."""
    have, want = op.input_shape(0)[-rank:], op.shape[-rank:]
    if not all(isinstance(a, int) and isinstance(b, int) and a % b == 0 for a, b in zip(have, want, strict=True)):
        raise op.refuse(
            f"adaptive pooling from {have} to {want}", "windows of unequal or varying size have no translation",
            "choose an output size that divides the input's, or 1",
        )  # fmt: skip
    kernel = [a // b for a, b in zip(have, want, strict=True)]  # type: ignore[operator]
    x, batched = _batched(op, x, rank)
    y = getattr(op, op_type)(x, kernel_shape=kernel, strides=kernel, outputs=2 if op_type == "MaxPool" else 1)
    y = y[0] if isinstance(y, tuple) else y
    return y if batched else op.Squeeze(y, [0])


@aten("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d", "upsample_linear1d")
def upsample(op: AtenBuilder, x: Any, output_size: Any, *rest: Any) -> Any:
    linear = "linear" in str(op.node.target)
    aligned = linear and bool(rest and rest[0])
    transform = ("align_corners" if aligned else "half_pixel") if linear else "asymmetric"
    return op.Resize(
        x, None, None, op.sizes(op.shape), mode="linear" if linear else "nearest",
        coordinate_transformation_mode=transform, nearest_mode=None if linear else "floor",
    )  # fmt: skip
