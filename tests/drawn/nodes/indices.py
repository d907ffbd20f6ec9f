"""Slices, gathers, scatters, and what returns places."""

from __future__ import annotations

import numpy as np

from tests.drawn.draw import Draw
from tests.drawn.nodes.node import Node, attributes, node

FAR = 2**62


@node.share(3)
def slices(draw: Draw) -> Node:
    """Some axes, forwards and backwards, from and to beyond the ends."""
    shape = draw.sizes(draw.integer(1, 3), 3, 6)
    axes = draw.axes(len(shape), draw.integer(1, len(shape)))
    starts = [draw.integer(-8, 8) for _ in axes]
    ends = [draw.choice([draw.integer(-8, 8), FAR, -FAR]) for _ in axes]
    steps = [draw.choice([1, 2, -1, -2, 3]) for _ in axes]
    return Node("Slice", [draw.array(*shape), *map(np.array, (starts, ends, axes, steps))], {})


def _place(draw: Draw) -> tuple[tuple[int, ...], int, int]:
    """A shape of up to three axes, one of them, and its size."""
    shape = draw.sizes(draw.integer(1, 3), 3, 5)
    axis = draw.integer(-len(shape), len(shape) - 1)
    return shape, axis, shape[axis]


@node
def gather(draw: Draw) -> Node:
    """Indices of up to two axes, some counted from the end."""
    shape, axis, size = _place(draw)
    indices = draw.indices(-size, size, draw.sizes(draw.integer(0, 2), 1, 3))
    return Node("Gather", [draw.array(*shape), np.asarray(indices)], dict(axis=axis))


@node
def gather_elements(draw: Draw) -> Node:
    """From parts of the other axes."""
    shape, axis, size = _place(draw)
    part = [draw.integer(1, length) for length in shape]
    return Node("GatherElements", [draw.array(*shape), draw.indices(-size, size, part)], dict(axis=axis))


@node
def scatter_elements(draw: Draw) -> Node:
    """Several to a place, with a reduction; without one each place is written to once."""
    shape, axis, size = _place(draw)
    part = [draw.integer(1, length) for length in shape]
    reduction = draw.maybe(draw.choice(["add", "mul", "max", "min"]))
    indices = draw.indices(-size, size, part)
    settings = attributes(axis=axis, reduction=reduction)
    return Node("ScatterElements", [draw.array(*shape), indices, draw.array(*part)], settings, opset=18)


def _tuples(draw: Draw) -> tuple[tuple[int, ...], int, np.ndarray]:
    """A shape, how many leading axes are indexed, and the indices."""
    shape = draw.sizes(draw.integer(1, 3), 3, 5)
    depth, batch = draw.integer(1, len(shape)), draw.sizes(draw.integer(1, 2), 1, 3)
    return shape, depth, np.stack([draw.indices(-shape[axis], shape[axis], batch) for axis in range(depth)], -1)


@node
def gather_nd(draw: Draw) -> Node:
    """By tuples of indices."""
    shape, _, indices = _tuples(draw)
    return Node("GatherND", [draw.array(*shape), indices], {})


@node
def scatter_nd(draw: Draw) -> Node:
    """By tuples of indices."""
    shape, depth, indices = _tuples(draw)
    updates = draw.array(*indices.shape[:-1], *shape[depth:])
    settings = attributes(reduction=draw.maybe(draw.choice(["add", "mul", "max", "min"])))
    return Node("ScatterND", [draw.array(*shape), indices, updates], settings, opset=18)


def _with_ties(draw: Draw) -> tuple[np.ndarray, int]:
    """Numbers of one digit, and an axis."""
    shape = draw.sizes(draw.integer(1, 3), 2, 5)
    return np.round(draw.array(*shape), 1), draw.integer(-len(shape), len(shape) - 1)


@node
def extreme(draw: Draw) -> Node:
    """ArgMax and ArgMin, the first or the last of equals."""
    x, axis = _with_ties(draw)
    settings = dict(axis=axis, keepdims=draw.choice([0, 1]), select_last_index=draw.choice([0, 1]))
    return Node(draw.choice(["ArgMax", "ArgMin"]), [x], settings)


@node
def top(draw: Draw) -> Node:
    """TopK."""
    x, axis = _with_ties(draw)
    count = np.array([draw.integer(1, x.shape[axis])])
    return Node("TopK", [draw.array(*x.shape), count], dict(axis=axis, largest=draw.choice([0, 1]), sorted=1), 2)


@node
def running_sum(draw: Draw) -> Node:
    """CumSum, without the element itself and from the end."""
    x, axis = _with_ties(draw)
    settings = dict(exclusive=draw.choice([0, 1]), reverse=draw.choice([0, 1]))
    return Node("CumSum", [x, np.array(axis, draw.choice([np.int64, np.int32]))], settings)


@node
def one_hot(draw: Draw) -> Node:
    """Of indices from the end, and of some beyond."""
    shape = draw.sizes(draw.integer(1, 3), 2, 5)
    axis = draw.integer(-len(shape) - 1, len(shape))
    inputs = [draw.indices(-6, 6, shape), np.array([5]), np.array([0.5, 2], np.float32)]
    return Node("OneHot", inputs, dict(axis=axis))


@node
def unique(draw: Draw) -> Node:
    """Of all elements or along an axis, in order of value or of place."""
    x, axis = _with_ties(draw)
    return Node("Unique", [x], attributes(axis=draw.maybe(axis), sorted=draw.choice([0, 1])), 4)


@node
def compress(draw: Draw) -> Node:
    """By a condition that may be too short."""
    x, axis = _with_ties(draw)
    return Node("Compress", [x, draw.indices(0, 2, draw.integer(1, x.shape[axis])).astype(bool)], dict(axis=axis))


@node
def reverse_sequence(draw: Draw) -> Node:
    """Over either axis."""
    shape, batch = draw.sizes(3, 2, 4), draw.choice([0, 1])
    lengths = draw.indices(1, shape[1 - batch] + 1, shape[batch])
    return Node("ReverseSequence", [draw.array(*shape), lengths], dict(batch_axis=batch, time_axis=1 - batch))


@node
def non_zero(draw: Draw) -> Node:
    """NonZero."""
    return Node("NonZero", [np.round(_with_ties(draw)[0])], {})
