"""Operators that move elements without computing: reshapes, permutations, slices, joins, casts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.operators.agreement import operand_of
from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.record import (
    DOMAIN,
    ELEMENTWISE,
    WHEREVER,
    Axis,
    Operator,
    Outrun,
    Precision,
    Rows,
    Stock,
    View,
    define,
)
from ontrain.operators.shapes import static_dims

__all__ = ["slice_places"]

Array = np.ndarray[Any, Any]


def _join(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    axis = node.attributes.get_int("axis", 0) % max(len(shapes[0]), 1)
    for shape in shapes[1:]:
        yield from ((a, b) for i, (a, b) in enumerate(zip(shapes[0], shape, strict=False)) if i != axis)


def _slice(
    a: Mapping[str, Any], x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Array | None:
    index = [slice(None)] * x.ndim
    for i, start in enumerate(starts.reshape(-1)):
        axis = int(axes.reshape(-1)[i]) if axes is not None else i
        step = int(steps.reshape(-1)[i]) if steps is not None else 1
        if step < 0:
            return None
        index[axis] = slice(int(start), int(ends.reshape(-1)[i]), step)
    return x[tuple(index)]


def _unsqueeze(a: Mapping[str, Any], x: Array, axes: Array) -> Array:
    return np.expand_dims(x, tuple(int(i) for i in axes.reshape(-1)))


def _squeeze(a: Mapping[str, Any], x: Array, axes: Array | None = None) -> Array:
    return np.squeeze(x, None if axes is None else tuple(int(i) for i in axes.reshape(-1)))


def _cast(a: Mapping[str, Any], x: Array) -> Array:
    with np.errstate(invalid="ignore"):  # a mask may cast log(0), whose entries it never uses
        return x.astype(ir.DataType(a["to"]).numpy())


def _reshape(a: Mapping[str, Any], x: Array, shape: Array) -> Array:
    dims = [x.shape[i] if d == 0 and not a.get("allowzero") else int(d) for i, d in enumerate(shape.reshape(-1))]
    return x.reshape(dims)


def _expand(a: Mapping[str, Any], x: Array, shape: Array) -> Array:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(d) for d in shape.reshape(-1)))).copy()


MOVES = Operator("", precision=Precision.FOLLOWS, computes=False)
"""Elements at other places, in the precision that they have."""
RESHAPES = replace(MOVES, settings=(1,), view=View.RESHAPED, keeps_values=True, rows=Rows.RESHAPED)
"""Elements in their order, in another shape."""


def _axes_and_sizes(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> str:
    """Whether there is one size for each axis."""
    stated = node.attributes.get("axes")
    if stated is None or len(shapes) < 2 or len(shapes[1]) != 1:
        return ""
    if len({axis % max(len(shapes[0]), 1) for axis in stated.value}) < len(stated.value):
        return f"its axes are {list(stated.value)}, of which two are the same"
    if len(stated.value) == shapes[1][0]:
        return ""
    return f"its axes are {list(stated.value)}, and it is fed {shapes[1][0]} sizes"


def _parts(node: ir.Node) -> str:
    """Whether there are as many results as parts."""
    stated = node.attributes.get("num_outputs")
    if stated is None or stated.is_ref() or stated.value == len(node.outputs):
        return ""
    return f"its num_outputs is {stated.value}, and it has {len(node.outputs)} outputs"


define("CenterCropPad", settings=(1,), misfit=_axes_and_sizes, stock=Stock.COMPARED)
for _name in ("Shape", "Size"):
    define(
        _name,
        weightless=(0,),
        reads_shape=True,
        computes=False,
        written=True,
        zero_gradient=WHEREVER,
        stock=Stock.COMPARED,
    )


define(
    "Identity",
    MOVES,
    view=View.SAME,
    keeps_values=True,
    rows=Rows.ELEMENTWISE,
    evaluate=lambda a, x: x,
    stock=Stock.KERNEL,
)
define("Cast", ELEMENTWISE, precision=Precision.OWN, keeps_values=True, evaluate=_cast, stock=Stock.KERNEL)


@gradient("Identity", "Cast")
@gradient("Inspect", domain=DOMAIN)
def identity(op: Op, dy: Value, x: Value, **_: object) -> Adjoints:
    """dy; the driver casts an adjoint to the dtype of its value."""
    return dy


define("CastLike", weightless=(1,), stock=Stock.COMPARED)


@gradient("CastLike")
def cast_like(op: Op, dy: Value, x: Value, like: Value, **_: object) -> Adjoints:
    """dy; nothing to the value that only lends its dtype."""
    return dy, None


define("Reshape", RESHAPES, evaluate=_reshape, stock=Stock.KERNEL)
define("Flatten", RESHAPES, settings=(), axis=Axis.ONE_MORE, stock=Stock.KERNEL)
define("Squeeze", RESHAPES, evaluate=_squeeze, stock=Stock.KERNEL)
define("Unsqueeze", RESHAPES, evaluate=_unsqueeze, stock=Stock.KERNEL)


@gradient("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(op: Op, dy: Value, x: Value, axes: Value | None = None, **_: object) -> Adjoints:
    """dy in the shape of x."""
    return op.reshaped(dy, static_dims(x)), None


define(
    "Transpose", MOVES, view=View.PERMUTED, keeps_values=True, rows=Rows.TRANSPOSED,
    evaluate=lambda a, x: np.transpose(x, a.get("perm")), stock=Stock.KERNEL,
)  # fmt: skip


@gradient("Transpose")
def transpose(op: Op, dy: Value, x: Value, *, perm: tuple[int, ...] | None = None) -> Adjoints:
    """The inverse permutation."""
    perm = perm if perm is not None else tuple(range(len(static_dims(x))))[::-1]
    return op.Transpose(dy, perm=[int(i) for i in np.argsort(perm)])


define(
    "Expand",
    MOVES,
    settings=(1,),
    view=View.REPEATED,
    rows=Rows.EXPANDED,
    fills=True,
    evaluate=_expand,
    stock=Stock.KERNEL,
)


@gradient("Expand")
def expand(op: Op, dy: Value, x: Value, shape: Value) -> Adjoints:
    """dy; the driver sums it back."""
    return dy, None


define("Tile", MOVES, settings=(1,), stock=Stock.KERNEL)


@gradient("Tile")
def tile(op: Op, dy: Value, x: Value, repeats: Value) -> Adjoints:
    """The sum over the copies."""
    shape = static_dims(x)
    if 0 in shape:
        return None, None
    copies = [have // want for have, want in zip(static_dims(dy), shape, strict=True)]
    copied = op.reshaped(dy, [*chain.from_iterable(zip(copies, shape, strict=True))])
    return op.ReduceSum(copied, list(range(0, 2 * len(shape), 2)), keepdims=0), None


define(
    "Concat",
    MOVES,
    rows=Rows.JOINED,
    agreeing=_join,
    evaluate=lambda a, *x: np.concatenate(x, axis=a["axis"]),
    stock=Stock.KERNEL,
)


@gradient("Concat")
def concat(op: Op, dy: Value, *xs: Value, axis: int) -> Adjoints:
    """dy split at the joints."""
    if len(xs) == 1:
        return dy
    return op.Split(dy, [static_dims(x)[axis] for x in xs], axis=axis, outputs=len(xs))


define("Split", MOVES, settings=(1,), view=View.PART, rows=Rows.ALONG_AXIS, fault=_parts, stock=Stock.KERNEL)


@gradient("Split")
def split(op: Op, dy: Value | None, x: Value, sizes: Value | None = None, *, axis: int, **_: object) -> Adjoints:
    """The pieces' adjoints joined, zeros for a piece that has none."""
    pieces = [g if g is not None else _zeros(op, v) for g, v in zip(op.dys, op.outputs, strict=True)]
    return op.Concat(*pieces, axis=axis) if len(pieces) > 1 else pieces[0], None


def _zeros(op: Op, like: Value) -> Value:
    return op.Expand(op.const(0.0, like.dtype), list(static_dims(like)))


define("Slice", MOVES, settings=(1, 2, 3, 4), view=View.PART, rows=Rows.CUT, evaluate=_slice, stock=Stock.KERNEL)


@gradient("Slice")
def slice_(op: Op, dy: Value, x: Value, *_: Value | None) -> Adjoints:
    """dy padded with zeros; along an axis with another step than one, each zero is gathered from behind the end."""
    shape = static_dims(x)
    starts, ends, axes, steps = (op.constant(i) for i in (1, 2, 3, 4))
    assert starts is not None and ends is not None
    axes = axes if axes is not None else np.arange(len(starts))
    steps = steps if steps is not None else np.ones(len(starts), np.int64)
    before, after = [0] * len(shape), [0] * len(shape)
    for start, end, place, step in zip(starts.tolist(), ends.tolist(), axes.tolist(), steps.tolist(), strict=True):
        axis = place % len(shape)
        taken = slice_places(start, end, step, shape[axis])
        if step == 1:
            before[axis], after[axis] = taken.start, shape[axis] - taken.start - len(taken)
        else:
            dy = _unstrided(op, dy, taken, axis, shape[axis])
    if any(before) or any(after):
        dy = op.Pad(dy, before + after)
    return [dy, *[None] * (len(op.inputs) - 1)]


def slice_places(start: int, end: int, step: int, size: int) -> range:
    """Return the places that a Slice takes of an axis, by ONNX's clamping.

    It is not quite Python's: from beyond the first element a negative step goes on from the first one.
    """
    start, end = start + size * (start < 0), end + size * (end < 0)
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


def _unstrided(op: Op, dy: Value, taken: range, axis: int, size: int) -> Value:
    source = np.full(size, len(taken), np.int64)
    source[list(taken)] = np.arange(len(taken))
    if len(taken) < size:
        pads = [0] * (2 * len(static_dims(dy)))
        pads[len(pads) // 2 + axis] = 1
        dy = op.Pad(dy, pads)
    return op.Gather(dy, source, axis=axis)


def _beyond(node: ir.Node) -> str | None:
    """A border that is repeated cannot be cut off in the same step."""
    pads = operand_of(node, 1)
    amounts = None if pads is None else pads.const_value
    mode = node.attributes.get_string("mode", "constant")
    if mode == "constant" or amounts is None or not (amounts.numpy() < 0).any():
        return None
    return f"a negative pad under mode {mode}"


define("Pad", MOVES, settings=(1, 3), weightless=(2,), stock=Stock.KERNEL)


@gradient("Pad", limit=_beyond)
def pad(
    op: Op, dy: Value, x: Value, pads: Value, fill: Value | None = None, axes: Value | None = None,
    *, mode: str,
) -> Adjoints:  # fmt: skip
    """The inner part of dy; under reflect, edge and wrap also what flows back from the copies in the border."""
    amounts, chosen, rank = op.constant(1), op.constant(3), len(static_dims(x))
    assert amounts is not None
    order = [int(a) % rank for a in chosen] if chosen is not None else list(range(rank))
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(order):
        before[axis], after[axis] = int(amounts[i]), int(amounts[len(order) + i])
    if mode != "constant":
        if min(before + after) < 0:
            raise op.refused(f"a negative pad under mode {mode}", "slice first, then pad")
        dx = op.composite("PadGrad", dy, shape=list(static_dims(x)), pads=before + after, mode=mode)
        return dx, None, None, None
    inner = _cropped(op, dy, before, after)
    dx = op.Pad(inner, [max(0, -p) for p in before + after]) if min(before + after) < 0 else inner
    dfill = None
    if len(op.wanted) > 2 and op.wanted[2]:
        dfill = op.ReduceSum(dy, keepdims=0) - op.ReduceSum(inner, keepdims=0)
    return dx, None, dfill, None


def _cropped(op: Op, dy: Value, before: list[int], after: list[int]) -> Value:
    """dy without the border that positive pads made."""
    shape = static_dims(dy)
    axes = [i for i in range(len(shape)) if before[i] > 0 or after[i] > 0]
    starts = [max(0, before[i]) for i in axes]
    ends = [shape[i] - max(0, after[i]) for i in axes]
    return op.Slice(dy, starts, ends, axes) if axes else dy


define("PadGrad", domain=DOMAIN)


define("Trilu", precision=Precision.FOLLOWS, settings=(1,), stock=Stock.KERNEL)


@gradient("Trilu")
def trilu(op: Op, dy: Value, x: Value, k: Value | None = None, *, upper: int) -> Adjoints:
    """The same triangle of dy."""
    return op.Trilu(dy, k, upper=upper), None


_BLOCKS = {"mode": ("DCR", "CRD")}
define(
    "DepthToSpace",
    precision=Precision.FOLLOWS,
    divides=lambda size: [(1, size * size)],
    choices=_BLOCKS,
    stock=Stock.KERNEL,
)


@gradient("DepthToSpace")
def depth_to_space(op: Op, dy: Value, x: Value, *, blocksize: int, mode: str) -> Adjoints:
    """SpaceToDepth, whose order is DCR; for CRD the same by a transposition."""
    if mode == "DCR":
        return op.SpaceToDepth(dy, blocksize=blocksize)
    n, c, h, w = static_dims(dy)
    blocks = op.reshaped(dy, [n, c, h // blocksize, blocksize, w // blocksize, blocksize])
    return op.reshaped(op.Transpose(blocks, perm=[0, 1, 3, 5, 2, 4]), static_dims(x))


define(
    "SpaceToDepth",
    precision=Precision.FOLLOWS,
    divides=lambda size: [(2, size), (3, size)],
    choices=_BLOCKS,
    stock=Stock.COMPARED,
)


@gradient("SpaceToDepth")
def space_to_depth(op: Op, dy: Value, x: Value, *, blocksize: int) -> Adjoints:
    """DepthToSpace."""
    return op.DepthToSpace(dy, blocksize=blocksize)


define("ReverseSequence", stock=Stock.COMPARED, outrun=Outrun.ALONE)


@gradient("ReverseSequence")
def reverse_sequence(op: Op, dy: Value, x: Value, lengths: Value, **attributes: Any) -> Adjoints:
    """Reversing again."""
    return op.ReverseSequence(dy, lengths, **attributes), None
