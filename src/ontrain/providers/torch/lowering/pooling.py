"""Pooling."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import onnx_ir as ir
import torch

from ontrain.graph import static_dims
from ontrain.operators import window_counts, window_places
from ontrain.providers.torch.buffers import Buf, order_of
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.convolution import geometry
from ontrain.providers.torch.lowering.registry import Attributes, attributes, lowers, lowers_composite
from ontrain.providers.torch.lowering.single_precision import in_single_precision

__all__: list[str] = []

aten = torch.ops.aten


def _takes(kernel: Sequence[int], pads: Sequence[tuple[int, int]]) -> bool:
    """Whether ATen's pooling takes the pads: as many before as behind, and at most half a kernel."""
    return all(before == after <= k // 2 for k, (before, after) in zip(kernel, pads, strict=True))


def _ceil(a: Attributes) -> bool:
    """Whether sizes are rounded up; with SAME they follow from the strides alone."""
    return bool(a.get("ceil_mode", 0)) and not a.get("auto_pad", "NOTSET").startswith("SAME")


def _reaches(
    x: Buf, wanted: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    pads: Sequence[tuple[int, int]],
) -> bool:  # fmt: skip
    """Whether windows reach beyond the images and their pads.

    They do where sizes are rounded up, and where a window is larger than the image by less than a stride: sizes are
    divided towards zero, so there is one window.
    """
    axes = zip(x.shape[2:], wanted, kernel, strides, dilations, pads, strict=True)
    return any((out - 1) * s + (k - 1) * d >= n + before + after for n, out, k, s, d, (before, after) in axes)


@dataclass(frozen=True)
class _Windows:
    """Windows of a pool over images [N, C, …], by spatial axis; `sizes` are the result's.

    Attributes:
        ceil: whether sizes are rounded up.
        beyond: whether windows reach beyond the images and their pads.
    """

    kernel: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[tuple[int, int]]
    sizes: Sequence[int]
    ceil: bool
    beyond: bool

    @classmethod
    def of(cls, node: ir.Node, x: Buf) -> _Windows:
        a = attributes(node)
        strides, dilations, pads = geometry(a, x, a["kernel_shape"])
        kernel, sizes = a["kernel_shape"], static_dims(node.outputs[0])[2:]
        beyond = _reaches(x, sizes, kernel, strides, dilations, pads)
        return cls(kernel, strides, dilations, pads, sizes, _ceil(a), beyond)

    @property
    def before(self) -> list[int]:
        return [before for before, _ in self.pads]

    @property
    def is_even(self) -> bool:
        """Whether ATen takes the pads."""
        return _takes(self.kernel, self.pads)


@lowers("MaxPool")
def max_pool(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    windows = _Windows.of(node, x)
    is_atens = len(windows.kernel) in _RANKS and windows.is_even and (windows.ceil or not windows.beyond)
    if 0 in windows.sizes:
        _nothing(e, node, x)
    elif is_atens and _only_differentiated(node):
        _pool_for_gradient(e, node, x, windows)
    elif e.device.type == "cpu" and not any(e.reads(places) for places in node.outputs[1:]):
        _pool_alone(e, node, x, windows)
    else:
        _pool_with_places(e, node, x, windows)


def _pool_for_gradient(e: Emitter, node: ir.Node, x: Buf, windows: _Windows) -> None:
    """Emit maxima with places as ATen counts them, which the gradient takes."""
    y = e.out(node.outputs[0], x)
    places = e.new(y.shape, torch.int64, order_of(y.meta))
    told = _windows(windows.kernel, windows.strides, windows.before, windows.dilations)
    images, maxima, at = (_images(e, v) for v in (e.ordered(x, order_of(x.meta)), y, places))
    pool = aten.max_pool3d_with_indices.out if len(windows.kernel) == 3 else aten.max_pool2d_with_indices.out
    e.run(pool, images, *told, windows.ceil, out=maxima, indices=at, writes=[maxima, at])
    e.keep(node.outputs[1], places, kernel=(*told, windows.ceil))


def _pool_alone(e: Emitter, node: ir.Node, x: Buf, windows: _Windows) -> None:
    """Emit maxima whose places nobody reads."""
    # ATen's kernel for channels that lie last counts places in numbers of the images' own type, and looks at each
    # window for itself; so maxima of whole rows take less time once there are some.
    is_lines = order_of(x.meta) is torch.channels_last and windows.is_even and x.dtype.is_floating_point
    told = windows.kernel, windows.strides, windows.before, windows.dilations
    if is_lines and x.meta.numel() <= _BY_WINDOW and not (windows.ceil or windows.beyond):
        e.compute(torch.max_pool2d, x, *told, outs=[e.out(node.outputs[0], x)], fresh=True)
        return
    axes = [*zip(windows.sizes, windows.kernel, windows.strides, windows.dilations, windows.before, strict=True)]
    e.compute(_maxima, x, axes, outs=[e.out(node.outputs[0], x)], fresh=True)


def _pool_with_places(e: Emitter, node: ir.Node, x: Buf, windows: _Windows) -> None:
    """Emit maxima and their places as the standard counts them."""
    outs: list[Buf | None] = [e.out(v, x) for v in node.outputs] + [None] * (2 - len(node.outputs))
    by_columns = bool(attributes(node).get("storage_order", 0)) and len(node.outputs) > 1
    e.compute(_maxima_and_places, x, windows, by_columns, outs=outs, fresh=True)


def _maxima_and_places(x: torch.Tensor, windows: _Windows, by_columns: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Maxima, and their places in the tensor, in a plane counted by columns or by rows."""
    kernel, spatial, is_whole = windows.kernel, x.shape[2:], not x.is_floating_point()
    x = x.contiguous() if is_whole else x
    pads = [max(pair) for pair in windows.pads] if windows.is_even else [0] * len(kernel)
    if not windows.is_even:
        margins = [size for pair in reversed(windows.pads) for size in pair]
        x = torch.nn.functional.pad(x, margins, value=_least(x))
    told = [*kernel], [*windows.strides], pads, [*windows.dilations], windows.ceil or windows.beyond
    y, index = _POOLS[len(kernel)](x, *told)
    if not windows.is_even:
        index = _repad(index, x.shape[2:], spatial, windows.before)
    for axis, size in enumerate(windows.sizes, 2):  # a window that begins in the pad behind is none
        y, index = y.narrow(axis, 0, size), index.narrow(axis, 0, size)
    if by_columns:
        index = _by_columns(index, spatial)
    # ATen's indices count within a plane, ONNX's within the tensor.
    planes = torch.arange(y.shape[0] * y.shape[1], device=y.device).view(*y.shape[:2], *([1] * len(kernel)))
    return y, index + planes * int(torch.Size(spatial).numel())


def _nothing(e: Emitter, node: ir.Node, x: Buf) -> None:
    """Results without elements, of images that are too small for a window."""
    for output in node.outputs:
        out = e.out(output, x)
        e.compute(functools.partial(_empty, dims=static_dims(output), dtype=out.dtype), x, outs=[out])


def _empty(x: torch.Tensor, dims: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return x.new_empty(dims, dtype=dtype)


_BY_WINDOW = 1 << 15
"""Elements of images up to which one call of ATen's takes less time than one for each place of a window."""
_RANKS = (1, 2, 3)
"""Numbers of axes over which ATen pools."""
_DEEP = 3
"""Axes of volumes, whose means ATen has in single and double precision only."""


def _windows(*axes: Sequence[int]) -> tuple[list[int], ...]:
    """Kernel, strides, pads and dilations, of a line as those of images one pixel high."""
    neutral = (1, 1, 0, 1)
    return tuple([across, *n] if len(n) == 1 else [*n] for across, n in zip(neutral, axes, strict=True))


def _images(e: Emitter, x: Buf) -> Buf:
    """Lines [N, C, L] as images one pixel high; all others as they are."""
    return e.view(x, lambda t: t.unsqueeze(2)) if len(x.shape) == 3 else x


def _maxima(x: torch.Tensor, axes: Sequence[tuple[int, int, int, int, int]]) -> torch.Tensor:
    """The maxima of windows without their places, axis by axis, each by as many whole maxima as a window is wide.

    ATen's kernel looks at one element after the other, and fills the places, too.

    Args:
        x: [N, C, …].
        axes: of each spatial axis the size of the result, and of a window size, stride, dilation, and the pad before.
    """
    least, y = _least(x), x
    for axis, (size, kernel, stride, dilation, before) in enumerate(axes, 2):
        reach = (size - 1) * stride + 1
        after = reach + (kernel - 1) * dilation - before - y.shape[axis]
        if before or after > 0:
            margins = [0, 0] * (y.dim() - 1 - axis) + [before, max(after, 0)]
            y = torch.nn.functional.pad(y, margins, value=least)
        parts = [y.narrow(axis, i * dilation, reach) for i in range(kernel)]
        parts = [_every(part, axis, stride) for part in parts]
        y = parts[0] if kernel == 1 else torch.maximum(parts[0], parts[1])
        for part in parts[2:]:
            torch.maximum(y, part, out=y)
    return y.clone() if all(kernel == 1 for _, kernel, *_ in axes) else y


def _least(x: torch.Tensor) -> float:
    """What no maximum is below, of the images' type."""
    return -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min


def _every(x: torch.Tensor, axis: int, stride: int) -> torch.Tensor:
    """Each so-manieth place of an axis, as a view."""
    return x if stride == 1 else x[(slice(None),) * axis + (slice(None, None, stride),)]


def _only_differentiated(node: ir.Node) -> bool:
    """Whether the places of the maxima are for the gradient alone, which takes them as ATen counts them."""
    if len(node.outputs) < 2 or node.outputs[1].is_graph_output() or attributes(node).get("storage_order", 0):
        return False
    return all(user.op_type == "MaxPoolGrad" for user in node.outputs[1].consumers())


def _max_pool1d(
    x: torch.Tensor, k: list[int], s: list[int], p: list[int], d: list[int], c: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    y, index = aten.max_pool2d_with_indices(x.unsqueeze(2), [1, *k], [1, *s], [0, *p], [1, *d], c)
    return y.squeeze(2), index.squeeze(2)


_POOLS: dict[int, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {
    1: _max_pool1d, 2: aten.max_pool2d_with_indices, 3: aten.max_pool3d_with_indices,
}  # fmt: skip
"""ATen's pools by the number of axes."""


def _repad(index: torch.Tensor, have: Sequence[int], want: Sequence[int], before: Sequence[int]) -> torch.Tensor:
    """Indices into a padded plane as indices into the plane without the pad."""
    result, place = torch.zeros_like(index), 1
    for n, m, b in zip(reversed(have), reversed(want), reversed(before), strict=True):
        result = result + (index % n - b) * place
        index, place = index // n, place * m
    return result


def _by_columns(index: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Places in a plane counted with the first axis running fastest, of those counted with the last."""
    result, place = torch.zeros_like(index), int(torch.Size(shape).numel())
    for size in reversed(shape):
        place //= size
        result = result + (index % size) * place
        index = index // size
    return result


@lowers_composite("MaxPoolGrad")
def max_pool_grad(e: Emitter, node: ir.Node) -> None:
    dy, (places, *_) = e.value(node.inputs[0]), e.kept(node.inputs[1]) or (None,)
    if places is not None:
        out, order = e.out(node.outputs[0], places), order_of(places.meta)
        # The kernel asks for the images only to know their shape, which the result has, too.
        target = out if order_of(out.meta) is order else e.new(out.shape, out.dtype, order)
        deep = len(places.shape) == 5
        kernel = aten.max_pool3d_with_indices_backward if deep else aten.max_pool2d_with_indices_backward
        dmaxima, images, at = (_images(e, v) for v in (e.ordered(dy, order), target, places))
        e.run(
            kernel.grad_input, dmaxima, images, *cast("tuple[object, ...]", e.kernel_of(node.inputs[1])), at,
            grad_input=images, writes=[images],
        )  # fmt: skip
        if target is not out:
            e.copy(target, out)
        return
    indices = e.value(node.inputs[1])
    out = e.out(node.outputs[0])
    e.run(torch.Tensor.zero_, out, writes=[out])
    flat = e.view(out, lambda t: t.view(-1))
    e.run(torch.Tensor.scatter_add_, flat, 0, e.reshape(indices, (-1,)), e.reshape(dy, (-1,)), writes=[flat])


@lowers("AveragePool")
def average_pool(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    a = attributes(node)
    kernel = a["kernel_shape"]
    strides, dilations, pads = geometry(a, x, kernel)
    include = bool(a.get("count_include_pad", 0))
    wanted = static_dims(node.outputs[0])[2:]
    if 0 in wanted:
        _nothing(e, node, x)
        return
    ceil = _ceil(a)
    beyond = not ceil and _reaches(x, wanted, kernel, strides, dilations, pads)
    fn = {1: torch.nn.functional.avg_pool1d, 2: torch.nn.functional.avg_pool2d, 3: torch.nn.functional.avg_pool3d}
    if _takes(kernel, pads) and all(d == 1 for d in dilations) and len(kernel) in fn and not beyond:
        pool: Callable[[torch.Tensor], torch.Tensor] = functools.partial(
            fn[len(kernel)], kernel_size=kernel, stride=strides, padding=[before for before, _ in pads], ceil_mode=ceil,
            count_include_pad=include,
        )  # fmt: skip
    else:
        pool = _mean_of_windows(e.device, wanted, x, kernel, strides, dilations, pads, include)
    if len(kernel) == _DEEP:
        pool = in_single_precision(pool)
    e.compute(pool, x, outs=[e.out(node.outputs[0], x)], fresh=True)


def _atens(node: ir.Node) -> bool:
    """Whether ATen's kernel takes these windows: up to three axes, no gaps, even pads, a result as it counts it.

    A node without inputs stands for the operator as such.
    """
    return not node.inputs or _rounds_up(node) is not None


def _rounds_up(node: ir.Node) -> bool | None:
    """Whether the last windows reach beyond the pads, as dy's shape says; None if ATen would count otherwise."""
    a, dy = attributes(node), static_dims(node.inputs[0]) if node.inputs[0] is not None else ()
    kernel, strides, pads = a["kernel_shape"], a["strides"], a["pads"]
    if (
        len(kernel) not in _RANKS
        or any(d != 1 for d in a["dilations"])
        or not _takes(kernel, list(zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)))
    ):
        return None
    for ceil in (False, True):
        counted = []
        for n, k, s, p in zip(a["shape"][2:], kernel, strides, pads, strict=False):
            count = -(-(n + 2 * p - k) // s) + 1 if ceil else (n + 2 * p - k) // s + 1
            counted.append(count - 1 if ceil and (count - 1) * s >= n + p else count)
        if tuple(counted) == tuple(dy[2:]):
            return ceil
    return None


@lowers_composite("AveragePoolGrad", when=_atens)
def average_pool_grad(e: Emitter, node: ir.Node) -> None:
    a, dy = attributes(node), e.value(node.inputs[0])
    rank, out = len(a["kernel_shape"]), e.out(node.outputs[0], dy)
    kernel, strides, pads, _ = _windows(a["kernel_shape"], a["strides"], a["pads"][:rank], a["dilations"])
    dmeans, images = (_images(e, v) for v in (e.ordered(dy, order_of(out.meta)), out))
    # The kernel asks for the images only to know their shape, which the result has, too.
    told = (kernel, strides, pads, _rounds_up(node), bool(a.get("count_include_pad", 0)), None)
    if rank == _DEEP and dy.dtype != torch.float32:
        e.compute(in_single_precision(aten.avg_pool3d_backward), dmeans, images, *told, outs=[images])
        return
    means = aten.avg_pool3d_backward if rank == _DEEP else aten.avg_pool2d_backward
    e.run(means.grad_input, dmeans, images, *told, grad_input=images, writes=[images])


def _mean_of_windows(
    device: torch.device, out: Sequence[int], x: Buf, kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], pads: Sequence[tuple[int, int]], include: bool,
) -> Callable[[torch.Tensor], torch.Tensor]:  # fmt: skip
    """Sums over windows axis by axis, where ATen has no kernel: gaps in windows, uneven pads, more than three axes."""
    before, space = [b for b, _ in pads], x.shape[2:]
    places = [window_places(*axis) for axis in zip(out, kernel, strides, dilations, before, strict=True)]
    flat = [*before, *(after for _, after in pads)]
    counts = torch.as_tensor(window_counts(places, space, flat, include)).to(device, x.dtype)
    beyond = [max(0, int(seen.max()) + 1 - size) for seen, size in zip(places, space, strict=True)]
    margins = [p for pair in zip(reversed(before), reversed(beyond), strict=True) for p in pair]
    rows = [torch.as_tensor(seen.ravel() + b).to(device) for seen, b in zip(places, before, strict=True)]

    def run(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.pad(x, margins)
        for axis, seen in enumerate(rows):
            windows = y.index_select(2 + axis, seen)
            y = windows.unflatten(2 + axis, (out[axis], kernel[axis])).sum(3 + axis)
        return y / counts

    return run


_FEW = 1 << 17
"""Elements of an image up to which ATen's mean takes longer to begin than to add up."""


def _is_small_image(e: Emitter, x: Buf) -> bool:
    plain = e.device.type == "cpu" and x.dtype == torch.float32 and len(x.shape) == 4
    dense = x.meta.is_contiguous() or order_of(x.meta) is torch.channels_last
    return plain and dense and x.shape[0] == 1 and 0 < x.meta.numel() <= _FEW


def _mean_of_pixels(e: Emitter, node: ir.Node, x: Buf) -> None:
    """The mean of an image as its channels [C, pixels] by a vector."""
    _, channels, height, width = x.shape
    last = not x.meta.is_contiguous()
    rows = e.view(x, lambda t: t.permute(0, 2, 3, 1).view(-1, channels).t() if last else t.view(channels, -1))
    equal = e.constant(torch.full((height * width,), 1 / (height * width)))
    mean = e.call(torch.mv, rows, equal, out=e.new((channels,)))
    e.bind(node.outputs[0], e.view(mean, lambda t: t.view(1, channels, 1, 1)))


@lowers("GlobalAveragePool", "GlobalMaxPool")
def global_pool(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    if node.op_type == "GlobalAveragePool" and _is_small_image(e, x):
        _mean_of_pixels(e, node, x)
        return
    fn = torch.mean if node.op_type == "GlobalAveragePool" else torch.amax
    e.call(fn, x, list(range(2, len(x.shape))), keepdim=True, out=e.out(node.outputs[0]))
