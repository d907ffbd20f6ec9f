"""Which nodes are small, and stand together in rows that onnxruntime runs as one call each.

A call from Python takes a microsecond or two, and many a node of a small model takes less. Larger nodes keep the
kernels of ATen and oneDNN, which run on all threads; onnxruntime's run on the calling thread. `joined_rows` makes the
calls.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch

from ontrain.functions import Flops, node_flops
from ontrain.graph import is_random
from ontrain.operators import Indexes, Stock, pads_by_size, record_of, static_dims
from ontrain.providers.torch.emitter import Emitter

__all__ = ["ALONE", "BESIDE", "Limits", "Row", "Small", "is_alike", "rows_of_small"]


@dataclass(frozen=True)
class Small:
    """What a small node has at most, by how many threads there are.

    Attributes:
        flops: operations.
        nbytes: of a value that it reads or writes.
        weight, weights: bytes of its weight, and of those of all rows of a plan: each session holds its own weights, in
            the order of its kernels.
    """

    flops: float
    nbytes: int
    weight: int
    weights: int


@dataclass(frozen=True)
class Limits:
    """What is small: of convolutions, whose call costs five times as much as another, and of other nodes."""

    convolutions: Small
    others: Small

    def of(self, node: ir.Node) -> Small:
        """Return what is small of a node's kind."""
        return self.convolutions if record_of(node).convolves else self.others


BESIDE = Limits(Small(4e6, 1 << 19, 1 << 19, 4 << 20), Small(5e5, 1 << 15, 1 << 19, 4 << 20))
"""What is larger is faster in kernels that run on several threads."""
ALONE = Limits(Small(math.inf, 64 << 20, 16 << 20, 96 << 20), Small(1e8, 64 << 20, 4 << 20, 32 << 20))
"""On one thread onnxruntime's products take as long as oneDNN's, and its convolutions half as long.

A convolution between rows leaves its images with their channels last, in which order no row reads them. So nearly all
of a network's convolutions are small. Texts come in many more lengths, each with a plan, than images come in sizes.
"""
LATER = Limits(ALONE.others, ALONE.others)
"""For the sizes that come when rows hold `_HELD` of weights already: each plan's hold the same weights once more."""
_HELD = 96 << 20
_CALL, _NODE, _LOOK = 5.0, 2.0, 0.2
"""Microseconds: of a call of onnxruntime, saved by a node inside it, and spent on one that only looks at memory."""
_BYTE = (ir.DataType.UINT8, ir.DataType.INT8)
_COMPUTED = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BOOL, *_BYTE})
"""What arithmetic makes in a row. Integers are left out: dividing the least of them by −1 ends the process."""
_SHORT = frozenset({ir.DataType.INT16, ir.DataType.UINT16})
"""What is made of reals, by quantisation; there is no arithmetic of such numbers in a row."""
_MOVED = _COMPUTED | _SHORT | {ir.DataType.INT64, ir.DataType.INT32}
_FAR = 8
"""How often over the size from which ontrain's kernel is ahead (`ahead_from`) no row is worth a node's longer time."""
_JOINED = (Stock.KERNEL, Stock.BODY)


@dataclass(frozen=True)
class Row:
    """Nodes that follow each other.

    Attributes:
        nodes: in the graph's order.
        joined: whether they are worth one call.
    """

    nodes: Iterable[ir.Node]
    joined: bool = False


def rows_of_small(e: Emitter, nodes: Sequence[ir.Node]) -> Iterator[Row]:
    """Yield nodes in their order, small ones together."""
    limits = BESIDE
    if torch.get_num_threads() == 1:
        limits = ALONE if e.session_weights.held_bytes < _HELD else LATER
    weights, row, costs = Counter[Small](), list[ir.Node](), dict[Hashable, Flops]()
    for node in nodes:
        most, more = limits.of(node), _weight_bytes(e, node)
        if weights[most] + more <= most.weights and _is_small(e, node, most, costs):
            weights[most] += more
            row.append(node)
            continue
        yield from _trimmed(row)
        row = []
        yield Row([node])
    if row and len(row) == len(nodes) and (_saves(row) or (limits is not BESIDE and _are_all(row))):
        yield Row(row, joined=True)  # a plan of one call is run from arrays to arrays
    else:
        yield from _trimmed(row)


def _trimmed(row: Sequence[ir.Node]) -> Iterator[Row]:
    """A row without the views at its ends, which cost nothing outside."""
    looks = [*map(_looks, row)]
    if False not in looks:
        yield Row(row)
        return
    first, last = looks.index(False), len(row) - looks[::-1].index(False)
    yield Row(row[:first])
    yield Row(row[first:last], joined=_saves(row[first:last]))
    yield Row(row[last:])


def _saves(row: Sequence[ir.Node]) -> bool:
    """Whether one call takes less time than the nodes by themselves."""
    looks, layers = sum(map(_looks, row)), sum(record_of(node).recurrent for node in row)
    # A recurrent layer by itself is a call of onnxruntime, too.
    return (len(row) - looks - layers) * _NODE + layers * _CALL > _CALL + looks * _LOOK


def _are_all(row: Sequence[ir.Node]) -> bool:
    """Whether onnxruntime is no slower at nodes that are a whole plan: what a call costs is saved in any case."""
    return all(
        value is None or math.prod(static_dims(value)) < record_of(node).ahead_of(node)
        for node in row for value in (*node.inputs, *node.outputs)
    )  # fmt: skip


def _looks(node: ir.Node) -> bool:
    """Whether a node only shows memory in another way, or one place of it."""
    record = record_of(node)
    if record.indexes is not Indexes.ALONG_AXIS or record.computes:
        return record.is_view
    places = node.inputs[1]
    return places is not None and places.const_value is not None and not places.const_value.numpy().ndim


def _is_small(e: Emitter, node: ir.Node, most: Small, costs: dict[Hashable, Flops]) -> bool:
    if node in e.placement.skipped or not is_alike(node):
        return False
    for value in node.inputs:
        if value is not None and not _fits(value, most.weight if _never_changes(e, value) else most.nbytes):
            return False
    if not all(_fits(value, most.nbytes) and value not in e.placement.pins for value in node.outputs if e.reads(value)):
        return False
    is_far_ahead = any(math.prod(static_dims(v)) >= _FAR * record_of(node).ahead_of(node) for v in node.outputs)
    return not is_far_ahead and node_flops(node, costs).total <= most.flops


def is_alike(node: ir.Node) -> bool:
    """Whether onnxruntime computes a node as ontrain does, without an end of the process for any number."""
    record = record_of(node)
    if is_random(node) or record.stock_of(node) not in _JOINED or pads_by_size(node):
        return False
    x = node.inputs[0] if node.inputs else None
    of_reals = x is not None and x.dtype is not None and x.dtype.is_floating_point()
    results = _MOVED if not record.computes else _COMPUTED | _SHORT if of_reals else _COMPUTED
    return all(value is None or value.dtype in _MOVED for value in node.inputs) and all(
        value.dtype in results for value in node.outputs if value.uses() or value.is_graph_output()
    )


def _fits(value: ir.Value, size: int) -> bool:
    return value.shape is not None and value.shape.is_static() and 0 < _nbytes(value) <= size


def _nbytes(value: ir.Value) -> int:
    assert value.dtype is not None
    return int(math.prod(static_dims(value)) * value.dtype.itemsize)


def _never_changes(e: Emitter, value: ir.Value) -> bool:
    return value.const_value is not None or (e.computed(value) and e.unchanging(e.raw(value)) is not None)


def _weight_bytes(e: Emitter, node: ir.Node) -> int:
    return sum(
        _nbytes(value) for value in node.inputs
        if value is not None and value.dtype is not None and value.shape is not None and value.shape.is_static()
        and _never_changes(e, value)
    )  # fmt: skip
