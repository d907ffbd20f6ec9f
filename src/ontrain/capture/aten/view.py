"""Shapes: views, copies, slices, concatenation, padding, dtype changes. Result shapes come from torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import onnx_ir as ir

from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder, Dim, Scalar
from ontrain.capture.names import CLONED
from ontrain.functions import VJP
from ontrain.graph import Role, role_of
from ontrain.operators import Value, each
from ontrain.sizes import Size

__all__ = ["diagonal_places", "sliced"]

_END = 2**63 - 1


@aten("view.default", "reshape", "flatten", "unflatten", "_unsafe_view", "view_as", "reshape_as", "_reshape_alias",
      "squeeze", "unsqueeze")  # fmt: skip
def reshape(op: AtenBuilder, x: Value, *_: object) -> Value:
    name, shape, before = str(op.node.target), op.shape, op.input_shape(0)
    if "squeeze" in name and shape != before:
        return _squeezed(op, x, shape, before)
    return op.reshape(x, shape, before)


def _squeezed(op: AtenBuilder, x: Value, shape: list[Dim], before: list[Dim]) -> Value:
    """Unsqueeze and Squeeze keep their names, which say more than a Reshape."""
    if len(shape) > len(before):
        dim = op.node.args[1]
        assert isinstance(dim, int)
        return op.Unsqueeze(x, [dim % len(shape)])
    dims: Any = op.node.args[1] if len(op.node.args) > 1 else range(len(before))
    axes = [dims] if isinstance(dims, int) else list(dims)
    return op.Squeeze(x, sorted(axis % len(before) for axis in axes if before[axis] == 1))


@aten("clone")
def clone(op: AtenBuilder, x: Value, *_: object, **__: object) -> Value:
    source = x
    while (
        (producer := source.producer()) is not None and producer.op_type == "Detach" and producer.inputs[0] is not None
    ):
        source = cast(Value, producer.inputs[0])
    if role_of(source) is Role.BUFFER:
        source.metadata_props[CLONED] = "1"
    return x


@aten("contiguous", "alias", "lift_fresh_copy", "lift_fresh", "lift", "positive", "resolve_conj",
      "resolve_neg", "pin_memory", "conj", "conj_physical", "real")  # fmt: skip
def same(op: AtenBuilder, x: Value, *_: object) -> Value:
    return x


@aten("view.dtype")
def reinterpreted(op: AtenBuilder, x: Value, dtype: object) -> Value:
    """The bits of each element as a number of another type, through which no gradient flows back."""
    if x.dtype == op.dtype:
        return x
    if x.dtype.itemsize != op.dtype.itemsize:
        raise op.refuse(
            f"a view of {x.dtype.name} as {op.dtype.name}, which takes another number of bytes",
            "an element of a graph is a number, and has no bytes to be divided", "use .to(dtype)",
        )  # fmt: skip
    return op.BitCast(op.composite("Detach", x) if x.dtype.is_floating_point() else x, to=op.dtype)


@aten("detach")
def detach(op: AtenBuilder, x: Value) -> Value:
    # A value that no gradient reaches needs no wall.
    return op.composite("Detach", x) if x.dtype.is_floating_point() and x.const_value is None else x


@aten("ontrain::revalued")
def revalued(op: AtenBuilder, x: Value, new: Value) -> Value:
    return op.composite("Revalued", x, new)


@aten("ontrain::inspect")
def inspect(op: AtenBuilder, x: Value, name: str) -> Value:
    return op.composite("Inspect", x, name=name)


@aten("ontrain::point")
def point(op: AtenBuilder, x: Value, likes: Sequence[Value]) -> Value:
    return op.composite("Inspect", x, name="")


@aten("ontrain::vjp")
def vjp(op: AtenBuilder, ys: Any, dys: Any, xs: Any) -> Any:
    gradients = op.composite(VJP, *ys, *dys, *xs, outputs=len(xs), count=len(ys))
    return list(gradients) if isinstance(gradients, tuple) else [gradients]


@aten("ontrain::adjoint")
def adjoint(op: AtenBuilder, y: Value) -> Value:
    return op.composite("Adjoint", y)


@aten("ontrain::through")
def through(
    op: AtenBuilder, ys: Sequence[Value], adjoints: Sequence[Value], xs: Sequence[Value], gradients: Sequence[Value]
) -> list[Value]:
    return list(each(op.composite("Through", *ys, *adjoints, *xs, *gradients, outputs=len(ys), results=len(ys))))


@aten("to", "_to_copy", "type_as", "prims::convert_element_type")
def to(op: AtenBuilder, x: Value, *_: object, **__: object) -> Value:
    return op.cast(x, op.dtype)


@aten("copy")
def copy(op: AtenBuilder, x: Value, source: Value, non_blocking: bool = False) -> Value:
    return op.constant_in(op.expand(op.cast(source, op.dtype), op.shape, op.input_shape(1)), x)


@aten("transpose.int", "swapaxes", "swapdims")
def transpose(op: AtenBuilder, x: Value, a: int, b: int) -> Value:
    perm = list(range(len(op.shape)))
    if not perm:
        return x
    perm[a], perm[b] = perm[b], perm[a]
    return _permuted(op, x, perm)


@aten("t", "mT")
def t(op: AtenBuilder, x: Value) -> Value:
    rank = len(op.shape)
    return x if rank < 2 else _permuted(op, x, [*range(rank - 2), rank - 1, rank - 2])


@aten("numpy_T")
def reversed_axes(op: AtenBuilder, x: Value) -> Value:
    """All axes in the other order, as numpy has it."""
    return _permuted(op, x, list(reversed(range(len(op.shape)))))


@aten("permute")
def permute(op: AtenBuilder, x: Value, dims: Sequence[int]) -> Value:
    return _permuted(op, x, [d % len(dims) for d in dims])


@aten("movedim", "moveaxis")
def movedim(op: AtenBuilder, x: Value, source: int | Sequence[int], destination: int | Sequence[int]) -> Value:
    rank = len(op.shape)
    sources = [d % rank for d in ([source] if isinstance(source, int) else source)]
    goals = [d % rank for d in ([destination] if isinstance(destination, int) else destination)]
    order = [d for d in range(rank) if d not in sources]
    for goal, axis in sorted(zip(goals, sources, strict=True)):
        order.insert(goal, axis)
    return _permuted(op, x, order)


def _permuted(op: AtenBuilder, x: Value, perm: list[int]) -> Value:
    return x if perm == sorted(perm) else op.Transpose(x, perm=perm)


@aten("expand", "expand_as", "broadcast_to")
def expand(op: AtenBuilder, x: Value, *_: object, **__: object) -> Value:
    return op.expand(x, op.shape, op.input_shape(0))


@aten("broadcast_tensors", "meshgrid")
def broadcast_tensors(op: AtenBuilder, tensors: list[Any], *, indexing: str = "ij") -> list[Value]:
    results = op.node.meta["val"]
    pieces = []
    for i, (x, val, before) in enumerate(zip(tensors, results, op.listed_shapes(), strict=True)):
        target = op.shape_of_val(val)
        if "meshgrid" in str(op.node.target):
            exchanged = indexing == "xy" and len(target) > 1 and i < 2
            axis = 1 - i if exchanged else i
            x = op.Reshape(x, [-1 if d == axis else 1 for d in range(len(target))])
            before = [target[d] if d == axis else 1 for d in range(len(target))]
        pieces.append(op.expand(x, target, before))
    return pieces


@aten("repeat", "tile")
def repeat(op: AtenBuilder, x: Value, repeats: Sequence[Dim]) -> Value:
    rank = len(op.input_shape(0))
    if len(repeats) > rank:
        x = op.Unsqueeze(x, list(range(len(repeats) - rank)))
    wanted: list[Dim] = [*[1] * (rank - len(repeats)), *repeats]
    if all(isinstance(count, int) and count == 1 for count in wanted):
        return x
    sizes = op.sizes(wanted)
    return op.Tile(x, op.const(np.array(sizes, np.int64)) if isinstance(sizes, list) else sizes)


@aten("repeat_interleave.self_int")
def repeat_interleave(
    op: AtenBuilder, x: Value, repeats: Dim, dim: int | None = None, *, output_size: Dim | None = None
) -> Value:
    before = op.input_shape(0)
    if dim is None:
        x, dim = op.Reshape(x, [-1]), 0
        before = [_product(before)]
    dim %= len(before)
    ones: list[Dim] = [1] * (len(before) + 1)
    wanted = op.sizes([*ones[: dim + 1], repeats, *ones[dim + 2 :]])
    copies = op.typed(op.Expand(op.Unsqueeze(x, [dim + 1]), wanted), [*before[: dim + 1], repeats, *before[dim + 1 :]])
    return op.reshape(copies, op.shape, [*before[: dim + 1], repeats, *before[dim + 1 :]])


def _product(sizes: Sequence[Dim]) -> Dim:
    return math.prod(sizes)


def sliced(op: AtenBuilder, x: Value, axis: int, start: Dim, end: Dim, step: int = 1) -> Value:
    """Return x[start:end:step] along an axis; bounds are numbers or sizes."""
    bounds = [_vector(op, bound) for bound in (start, end)]
    return op.Slice(x, *bounds, [axis], [step])


def _vector(op: AtenBuilder, bound: Dim) -> Value:
    return op.symbols.emit(op, bound) if isinstance(bound, Size) else op.const(np.array([bound], np.int64))


@aten("slice.Tensor", "slice_copy.Tensor")
def slice_tensor(
    op: AtenBuilder, x: Value, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: Dim = 1
) -> Value:
    if isinstance(step, Size):
        return _strided(op, x, dim % len(op.shape), start, end, step)
    if op.shape == op.input_shape(0) and step == 1:
        return x
    axis = dim % len(op.shape)
    return sliced(op, x, axis, 0 if start is None else start, _END if end is None else end, step)


def _strided(op: AtenBuilder, x: Value, axis: int, start: Dim | None, end: Dim | None, step: Size) -> Value:
    """Every so many places of x between two, where how many is a number that no plan knows."""
    part = x if start is None and end is None else sliced(op, x, axis, start or 0, _END if end is None else end)
    length = op.input_shape(0)[axis] if part is x else op.symbols.count(part, axis)
    places = op.counted((length + step - 1) // step) * _vector(op, step)
    return op.Gather(part, places, axis=axis)


@aten("narrow")
def narrow(op: AtenBuilder, x: Value, dim: int, start: Value | Dim, length: int) -> Value:
    if isinstance(start, ir.Value) or not op.symbols.is_planned(start):
        first = op.Reshape(start, [1]) if isinstance(start, ir.Value) else _vector(op, start)
        return op.Gather(x, op.cast(first, ir.DataType.INT64) + op.counted(length), axis=dim)
    if isinstance(start, Size) or isinstance(length, Size):
        return op.Slice(x, _vector(op, start), _vector(op, start) + _vector(op, length), [dim])
    end = _END if start < 0 and start + length == 0 else start + length
    return x if op.shape == op.input_shape(0) else sliced(op, x, dim, start, end)


@aten("select.int")
def select(op: AtenBuilder, x: Value, dim: int, index: int) -> Value:
    """A slice of one and a Squeeze: its gradient is a padding, where a Gather's is a scatter."""
    dim %= len(op.input_shape(0))
    if isinstance(index, ir.Value):
        return op.Gather(x, op.Squeeze(op.cast(index, ir.DataType.INT64), None), axis=dim)
    if isinstance(index, Size):
        return op.Gather(x, op.scalar(index), axis=dim)
    size = op.input_shape(0)[dim]
    if size == 1:
        return op.Squeeze(x, [dim])
    return op.Squeeze(sliced(op, x, dim, index, index + 1 or _END), [dim])


@aten("diff")
def diff(
    op: AtenBuilder, x: Value, n: int = 1, dim: int = -1, prepend: Value | None = None, append: Value | None = None
) -> Value:
    if n == 0:
        return x  # whatever is to be put before or behind
    parts = [op.cast(part, op.dtype) for part in (prepend, x, append) if part is not None]
    x = op.Concat(*parts, axis=dim) if len(parts) > 1 else parts[0]
    for _ in range(n):
        x = sliced(op, x, dim, 1, _END) - sliced(op, x, dim, 0, -1)
    return x


@aten("flip")
def flip(op: AtenBuilder, x: Value, dims: Sequence[int]) -> Value:
    count = len(dims)
    return op.Slice(x, [-1] * count, [-_END] * count, list(dims), [-1] * count) if count else x


@aten("roll")
def roll(op: AtenBuilder, x: Value, shifts: int | Sequence[Dim], dims: int | Sequence[int] = ()) -> Value:
    shape = op.input_shape(0)
    if not shape or any(size == 0 for size in shape):
        return x
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    sizes = shape if dims else [_product(shape)]
    if not dims:
        x, dims = op.Reshape(x, [-1]), [0]
    for shift, dim in zip(shifts, dims, strict=True):
        start = _remainder(shift, sizes[dim])
        if not op.symbols.is_planned(start):
            places = op.Mod(op.counted(sizes[dim]) + op.scalar(start), op.scalar(sizes[dim]))
            x = op.Gather(x, places, axis=dim)
        elif start != 0:
            x = op.Concat(sliced(op, x, dim, start, _END), sliced(op, x, dim, 0, start), axis=dim)
    return x if sizes is shape else op.reshape(x, shape, [-1])


def _remainder(shift: Dim, size: Dim) -> Dim:
    """Where a roll by `shift` begins to read: below the size, however far the roll goes."""
    start = -shift % size
    return start if isinstance(start, int) or start.as_number is None else int(start.as_number)


@aten("pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
      "replication_pad2d", "replication_pad3d")  # fmt: skip
def pad(op: AtenBuilder, x: Value, pads: Sequence[Dim], mode: str = "constant", value: Scalar | None = None) -> Value:
    name = str(op.node.target)
    if "constant_pad_nd" in name:
        mode, value = "constant", mode if not isinstance(mode, str) else 0
    elif "_pad" in name:
        mode = "reflect" if "reflection" in name else "replicate"
    mode = {"replicate": "edge", "circular": "wrap"}.get(mode, mode)
    rank = len(op.input_shape(0))
    # torch lists (before, after) from the last axis on, ONNX all befores and then all afters.
    before: list[Dim] = [0] * rank
    after: list[Dim] = [0] * rank
    for i in range(len(pads) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = pads[2 * i], pads[2 * i + 1]
    cuts: list[tuple[int, int, int]] = []
    for axis in range(rank):
        # A negative padding cuts.
        start, end = (-n if isinstance(n, int) and n < 0 else 0 for n in (before[axis], after[axis]))
        if start or end:
            cuts.append((axis, start, end))
            before[axis], after[axis] = (0 if start else before[axis]), (0 if end else after[axis])
    if mode == "edge" and any([*before, *after]):
        # What is repeated is the edge of the whole, even where it is cut off.
        return _cut(op, padded(op, x, before, after, mode, value), cuts)
    return padded(op, _cut(op, x, cuts), before, after, mode, value)


def _cut(op: AtenBuilder, x: Value, cuts: Sequence[tuple[int, int, int]]) -> Value:
    """x without so many elements at the start and at the end of some axes."""
    for axis, start, end in cuts:
        x = sliced(op, x, axis, start, -end or _END)
    return x


def padded(op: AtenBuilder, x: Value, before: list[Dim], after: list[Dim], mode: str, value: Scalar | None) -> Value:
    if not any([*before, *after]):
        return x
    fill = op.cast(value or 0, x.dtype) if mode == "constant" else None
    sizes = op.sizes([*before, *after])
    sizes = op.const(np.array(sizes, np.int64)) if isinstance(sizes, list) else sizes
    return op.Pad(x, sizes, fill, mode=mode)


@aten("diagonal")
def diagonal(op: AtenBuilder, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """Taken from the two axes flattened to one."""
    shape = op.input_shape(0)
    rank = len(shape)
    axes = [d for d in range(rank) if d not in (dim1 % rank, dim2 % rank)]
    perm = [*axes, dim1 % rank, dim2 % rank]
    rows, columns = shape[perm[-2]], shape[perm[-1]]
    flat = op.reshape(_permuted(op, x, perm), [*(shape[d] for d in axes), rows * columns], [])
    return op.Gather(flat, diagonal_places(op, op.shape[-1], columns, offset), axis=len(axes))


def diagonal_places(op: AtenBuilder, count: Dim, columns: Dim, offset: int) -> Value:
    """Return where the elements of a diagonal lie in a flattened matrix: so many, as int64."""
    first = offset if offset >= 0 else columns * -offset
    if isinstance(count, int) and isinstance(columns, int) and isinstance(first, int):
        return op.const((first + np.arange(count) * (columns + 1)).astype(np.int64))
    return op.counted(count) * op.scalar(columns + 1) + op.scalar(first)


@aten("pixel_shuffle")
def pixel_shuffle(op: AtenBuilder, x: Value, upscale_factor: int) -> Value:
    return op.DepthToSpace(x, blocksize=upscale_factor, mode="CRD")


@aten("unfold")
def unfold(op: AtenBuilder, x: Value, dimension: int, size: Dim, step: Dim) -> Value:
    shape = op.input_shape(0)
    if not shape:
        return op.expand(op.Reshape(x, [1]), op.shape, [1])
    dimension %= len(shape)
    if not isinstance(size, int) or not isinstance(step, int):
        raise op.refuse("windows of a size that varies", "their places are counted by constants", "fix the size")
    windows = op.Gather(x, window_places(op, op.shape[dimension], size, step), axis=dimension)
    rank = len(shape) + 1
    return _permuted(op, windows, [*(d for d in range(rank) if d != dimension + 1), dimension + 1])


def window_places(op: AtenBuilder, count: Dim, size: int, step: int) -> Value:
    """Return where windows along an axis look, int64 (count, size)."""
    starts = op.Unsqueeze(op.counted(count) * np.int64(step), [1])
    return starts + np.arange(size, dtype=np.int64)


@aten("as_strided", "as_strided_copy")
def as_strided(op: AtenBuilder, x: Value, *_: object) -> Value:
    """A Gather from the flat tensor, where all sizes are known and the tensor fills the memory that is looked at."""
    return op.Gather(op.Reshape(x, [-1]), op.const(_strided_places(op, 1)), axis=0)


@aten("as_strided_scatter")
def as_strided_scatter(op: AtenBuilder, x: Any, source: Any, *_: Any) -> Any:
    """The tensor with other values where `as_strided` would look; no two places may be the same."""
    places = _strided_places(op, 2).reshape(-1)
    if len(np.unique(places)) != len(places):
        raise op.refuse("a write to overlapping places", "their order is not said", "write to each place once")
    flat = op.ScatterElements(op.Reshape(x, [-1]), op.const(places), op.Reshape(source, [-1]), axis=0)
    return op.Reshape(flat, op.sizes(op.input_shape(0)))


def _strided_places(op: AtenBuilder, position: int) -> Any:
    """Return where a strided view looks in the flat tensor, int64; its sizes are arguments from `position` on."""
    base = op.argument(0)
    named = [op.argument(position + at, name) for at, name in enumerate(("size", "stride", "storage_offset"))]
    size, stride, offset = (list(v) if isinstance(v, list | tuple) else v for v in named)
    start = base.storage_offset()
    offset = start if offset is None else offset
    numbers = [*size, *stride, *base.shape, *base.stride(), offset, start]
    if not all(isinstance(n, int) for n in numbers):
        raise op.refuse("as_strided", "a graph has no strides", "use view, transpose, expand or unfold")
    own = _memory_places(base.shape, base.stride(), 0).reshape(-1)
    places = _memory_places(size, stride, offset - start)
    reach = int(own.max()) + 1 if own.size else 0
    elements = np.full(reach, -1, np.int64)
    elements[own] = np.arange(own.size)
    if np.count_nonzero(elements >= 0) < own.size:
        raise op.refuse("as_strided of an expanded tensor", "its elements share memory", "make it contiguous first")
    if places.size and not 0 <= places.min() <= places.max() < reach or (elements[places] < 0).any():
        raise op.refuse("as_strided beyond its tensor", "a graph has no memory around it", "use the whole tensor")
    return elements[places]


def _memory_places(size: Sequence[int], stride: Sequence[int], offset: int) -> Any:
    """Return where in memory the elements of a strided tensor lie, int64 of its shape."""
    places = np.full((), offset, np.int64)
    for n, step in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(n, dtype=np.int64) * step
    return places


@aten("resize")
def resize(op: AtenBuilder, x: Value, size: Sequence[Dim], *, memory_format: object = None) -> Value:
    """The elements in their order, where there are as many of them as before."""
    before, after = op.input_shape(0), op.shape
    if op.count(before) != op.count(after) or not isinstance(op.count(before), int):
        raise op.refuse("resize_ to another number of elements", "the new ones have no value", "make a new tensor")
    return op.reshape(x, after, before)
