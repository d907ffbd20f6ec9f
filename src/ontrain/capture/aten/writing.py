"""Writes through a view: what the viewed tensor becomes when the view gets a new value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ontrain.capture.aten.complex import Complex
from ontrain.capture.aten.indexing import select_scatter, slice_written
from ontrain.capture.aten.view import window_places
from ontrain.capture.context import AtenBuilder, Dim
from ontrain.operators import Value

__all__ = ["is_followed", "write_back"]


def _select(op: AtenBuilder, x: Value, new: Value, dim: int, index: Dim) -> Value:
    return select_scatter(op, x, new, dim, index)


def _slice(
    op: AtenBuilder, x: Value, new: Value, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: int = 1
) -> Value:
    return slice_written(op, x, new, op.shape, dim, start, step)


def _narrow(op: AtenBuilder, x: Value, new: Value, dim: int, start: Dim, length: Dim) -> Value:
    return slice_written(op, x, new, op.shape, dim, start, 1)


def _reshape(op: AtenBuilder, x: Value, new: Value, *_: object) -> Value:
    return op.reshape(new, op.input_shape(0), op.shape)


def _transpose(op: AtenBuilder, x: Value, new: Value, a: int = -1, b: int = -2) -> Value:
    perm = list(range(len(op.shape)))
    perm[a], perm[b] = perm[b], perm[a]
    return op.Transpose(new, perm=perm)


def _permute(op: AtenBuilder, x: Value, new: Value, dims: Sequence[int]) -> Value:
    perm = [d % len(dims) for d in dims]
    return op.Transpose(new, perm=[perm.index(axis) for axis in range(len(perm))])


def _unfold(op: AtenBuilder, x: Value, new: Value, dimension: int, size: Dim, step: Dim) -> Value:
    """Rows of x, its axis put first, with those of the windows; a step may leave rows between them as they are."""
    shape = op.input_shape(0)
    if not shape:
        return op.reshape(new, [], op.shape)
    if not isinstance(size, int) or not isinstance(step, int) or size > step:
        raise op.refuse("a write to windows that may overlap", "their order is not said", "write to each place once")
    rank, axis = len(shape), dimension % len(shape)
    others = [d for d in range(rank) if d != axis]
    places = op.Reshape(window_places(op, op.shape[axis], size, step), [-1, 1])
    rows = op.Transpose(new, perm=[axis, rank, *others])
    sizes = [shape[d] for d in others]
    rows = op.reshape(rows, [op.shape[axis] * size, *sizes], [op.shape[axis], size, *sizes])
    written = op.ScatterND(op.Transpose(x, perm=[axis, *others]), places, rows)
    return op.Transpose(written, perm=[1 + others.index(d) if d != axis else 0 for d in range(rank)])


_aten = torch.ops.aten
_WRITES: dict[Any, Callable[..., Value]] = {
    _aten.select.int: _select,
    _aten.slice.Tensor: _slice,
    _aten.narrow.default: _narrow,
    _aten.view.default: _reshape,
    _aten.unflatten.int: _reshape,
    _aten.unsqueeze.default: _reshape,
    _aten.squeeze.dim: _reshape,
    _aten.squeeze.default: _reshape,
    _aten.transpose.int: _transpose,
    _aten.swapaxes.default: _transpose,
    _aten.mT.default: _transpose,
    _aten.t.default: _transpose,
    _aten.permute.default: _permute,
    _aten.unfold.default: _unfold,
    _aten.alias.default: lambda op, x, new: new,
    _aten.detach.default: lambda op, x, new: new,  # of a dtype without gradients: see capture/detached.py
}


def is_followed(target: Any) -> bool:
    """Whether a write through this view operator has a translation. One that may copy has none."""
    return target in _WRITES


def write_back(op: AtenBuilder, x: Value | Complex, new: Value | Complex, *arguments: Any) -> Value | Complex:
    """Return x with `new` in the part of it that the current node, a view of it, shows.

    Args:
        arguments: those of the view operator after x.
    """
    write = _WRITES[op.node.target]
    if isinstance(x, Complex):
        assert isinstance(new, Complex)
        return Complex(write(op, x.real, new.real, *arguments), write(op, x.imag, new.imag, *arguments))
    return write(op, x, new, *arguments)
