"""Reads and writes at places that are numbers out of tensors.

h[:n] = 0              →   h[arange(size)[:n]] = 0
h[n] = 0               →   h[arange(size).select(0, n)] = 0
v = h[:n]; v.add_(y)       torch takes the slice again behind the write, for autograd: it has the size that v has
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ontrain.capture.autograd import traced_here
from ontrain.capture.listed_tensors import as_tensor, varies
from ontrain.capture.number_arrays import listed
from ontrain.internals import wrapped

__all__ = ["getitem", "one_size_each", "setitem"]


def getitem(input: torch.Tensor, index: Any) -> Any:
    """Return `input[index]`; a bound may be a tensor, which up to torch 2.12 is asked for."""
    return input[tuple(map(_part, index)) if isinstance(index, tuple) else _bounded(index)]


def setitem(input: torch.Tensor, index: Any, value: Any) -> None:
    """Write `input[index] = value`; a place, bound or step may be a number that follows from values."""
    parts = [_part(part) for part in index] if isinstance(index, tuple) else [_bounded(index)]
    varying = [at for at, part in enumerate(parts) if _has_numbers(part)]
    if varying and _is_plain(parts) and varying[-1] - varying[0] == len(varying) - 1:
        axes = _axes(parts, input.dim())
        for rank, at in enumerate(reversed(varying)):  # adjacent places span the block where the slices stood
            places = _places(input, axes[at], parts[at])
            parts[at] = places.reshape([*places.shape, *[1] * rank]) if places.dim() else places
    input[tuple(parts) if isinstance(index, tuple) else parts[0]] = value


@contextmanager
def one_size_each() -> Iterator[None]:
    """Give a slice the size and the place in memory that the same slice of such a tensor has been given before.

    Torch makes symbols of their own for each: two slices `x[:n]` would not be as long as one another, and autograd,
    which takes a view again after a write to it, would be refused.
    """
    known: dict[Any, tuple[Any, Any]] = {}

    def wrap(implementations: Mapping[Any, Any]) -> Mapping[Any, Any]:
        views = {torch.ops.aten.slice.Tensor: 1, torch.ops.aten.select.int: 0}
        return {**implementations, **{view: _remembered(implementations[view], rank, known)
                                      for view, rank in views.items() if view in implementations}}  # fmt: skip

    with wrapped({"torch._subclasses.fake_impls.op_implementations_dict": wrap}):
        yield


def _remembered(own: Callable[..., Any], rank: int, known: dict[Any, tuple[Any, Any]]) -> Callable[..., Any]:
    """A view's implementation for tensors without values; of the axis it leaves as many as `rank` says."""

    def view(mode: Any, function: Any, tensor: Any, dim: int = 0, *places: Any) -> Any:
        numbers = [place.node.expr if isinstance(place, torch.SymInt) else place for place in places]
        if not any(map(_varies, places)) or not traced_here():
            return own(mode, function, tensor, dim, *places)
        axis = dim % tensor.dim()
        layout = [tensor.shape[axis], tensor.stride(axis), tensor.storage_offset()]
        key = (mode.shape_env, function, *(n.node.expr if isinstance(n, torch.SymInt) else n for n in layout), *numbers)
        if key not in known:
            result = own(mode, function, tensor, dim, *places)
            known[key] = tuple(result.shape[axis : axis + rank]), result.storage_offset()
            return result
        sizes, offset = known[key]
        step = tensor.stride(axis) * (places[2] if len(places) > 2 else 1)
        shape = (*tensor.shape[:axis], *sizes, *tensor.shape[axis + 1 :])
        stride = (*tensor.stride()[:axis], *[step] * rank, *tensor.stride()[axis + 1 :])
        return tensor.as_strided(shape, stride, offset)

    return view


def _is_a_number(bound: Any) -> bool:
    """Whether a bound is a tensor with a whole number."""
    if not isinstance(bound, torch.Tensor) or bound.dim():
        return False
    return not (bound.is_floating_point() or bound.is_complex() or bound.dtype is torch.bool)


def _part(part: Any) -> Any:
    part = _bounded(part)
    return as_tensor(part) if isinstance(part, list | tuple) and varies(part) else part


def _bounded(part: Any) -> Any:
    if not isinstance(part, slice):
        return listed(part)
    return slice(*(b.item() if _is_a_number(b) else b for b in (part.start, part.stop, part.step)))


def _varies(number: Any) -> bool:
    return isinstance(number, torch.SymInt) and not number.node.has_hint()


def _has_numbers(part: Any) -> bool:
    return any(map(_varies, (part.start, part.stop, part.step) if isinstance(part, slice) else (part,)))


def _is_plain(parts: Sequence[Any]) -> bool:
    """Whether places along an axis take the slice's own place in the result: no other part is an array."""
    return all(part is None or part is Ellipsis or isinstance(part, slice | int | torch.SymInt) for part in parts)


def _axes(parts: Sequence[Any], rank: int) -> list[int]:
    """The axis that each part is for."""
    consumed = sum(part is not None and part is not Ellipsis for part in parts)
    axes, axis = [], 0
    for part in parts:
        axes.append(axis)
        axis += rank - consumed if part is Ellipsis else part is not None
    return axes


def _places(input: torch.Tensor, axis: int, part: slice | int) -> torch.Tensor:
    """The places along an axis that a slice takes, or the place."""
    places = torch.arange(input.shape[axis], device=input.device)
    if not isinstance(part, slice):
        return places.select(0, part)
    if part.start is not None or part.stop is not None:
        places = places[part.start : part.stop]
    if part.step is None:
        return places
    count = (places.shape[0] + part.step - 1) // part.step
    return places.index_select(0, torch.arange(count, device=input.device) * part.step)
