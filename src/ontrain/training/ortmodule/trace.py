"""The trace of a module for a call: which sizes the graph leaves open, and what is set for torch meanwhile."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from enum import IntEnum
from typing import Any

import torch
from torch import nn

from ontrain.capture import Captured, ChangedStateError, Course, capture, refuse_as_eager, telling_grad_mode
from ontrain.errors import CaptureError
from ontrain.internals import available
from ontrain.training.inspection import any_subscribed

__all__ = ["Axes", "FixedSizes", "trace_call"]

_CHANNELS, _SMALLEST_IMAGE = 4, 16
"""The most channels of what is taken for an image that is no square, and the least height and width."""
FixedSizes = Sequence[Sequence[int | None]]
"""The sizes that a capture wants of each tensor; None for those that it leaves open."""


class Axes(IntEnum):
    """The axes whose sizes a graph leaves open: all, the first of each tensor, or none."""

    ALL = 0
    FIRST = 1
    NONE = 2


def trace_call(
    module: nn.Module, args: tuple[object, ...], kwargs: dict[str, Any], tensors: Sequence[torch.Tensor], *,
    axes: Axes, misfits: Sequence[FixedSizes], under_no_grad: bool, paths: bool, course: Course | None,
    varies: Callable[[torch.Tensor], bool], writes_parameters: bool, reads: bool,
) -> tuple[Captured, Axes]:  # fmt: skip
    """Return the graph of a module for calls like this one, and which axes the next graph may leave open.

    Args:
        module: in the mode it is in.
        args: positional arguments of the call.
        kwargs: its keyword arguments.
        tensors: of the arguments, in order.
        axes: those that the graph leaves open if it can; none otherwise.
        misfits: the sizes that captures which do not hold for the call want of its tensors.
        under_no_grad: whether to trace without gradients: forward asks its own values whether they are followed by
            autograd, or has them followed in a part of it, and is called without.
        paths, course, varies, writes_parameters, reads: see `ontrain.capture.capture`.

    Raises:
        CaptureError: the module cannot be captured.
    """
    trace = functools.partial(
        capture,
        module,
        args,
        kwargs,
        observed=any_subscribed(),
        sized_by_values=True,
        paths=paths,
        course=course,
        complex_pairs=True,
        varies=varies,
        writes_parameters=writes_parameters,
        writes=True,
        reads=reads,
    )
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    # Hooks of a checkpoint around the call are to see what the call saves, and not what a trace does. Without any
    # there are none within, because torch.func does not work under hooks.
    hooks = available("torch._C._autograd._top_saved_tensors_default_hooks")
    hooked = hooks is not None and hooks(False) is not None
    unseen = torch.autograd.graph.saved_tensors_hooks(_unchanged, _unchanged) if hooked else nullcontext()
    autograd = torch.no_grad() if under_no_grad else torch.enable_grad()
    with torch.inference_mode(False), autograd, telling_grad_mode(*modes), unseen:
        try:
            return _of_many_sizes(trace, type(module).__name__, tensors, axes, misfits)
        except CaptureError as error:
            refuse_as_eager(module, args, kwargs, error)
            raise


def _of_many_sizes(
    trace: Callable[..., Captured], kind: str, tensors: Sequence[torch.Tensor], axes: Axes,
    misfits: Sequence[FixedSizes],
) -> tuple[Captured, Axes]:  # fmt: skip
    """Trace a module for all sizes of these axes, or for the call's own where that cannot be."""
    named = [{a: f"dim{a}_of_{i}" for a in varying} for i, varying in enumerate(_varying(tensors, misfits))]
    first = [{a: name for a, name in names.items() if a == 0} for names in named]
    dynamic = {Axes.ALL: named, Axes.FIRST: first}.get(axes, [{} for _ in named])
    try:
        return trace(dynamic=dynamic), axes
    except CaptureError as error:
        if not any(dynamic) or isinstance(error, ChangedStateError):
            raise
        captured = trace()
        if axes is Axes.ALL:
            warnings.warn(f"{kind} is captured anew for each shape: {error.problem}", stacklevel=8)
        return captured, Axes.FIRST if axes is Axes.ALL and named != first else Axes.NONE


def _varying(tensors: Sequence[torch.Tensor], misfits: Sequence[FixedSizes]) -> list[list[int]]:
    """The axes of each tensor whose sizes a capture leaves open.

    A size of one may be one to be broadcast: it is captured as such. Images and volumes keep height, width and depth
    until others come: networks cut them into windows and merge these, and torch.export reasons for a minute about sizes
    it does not know.
    """
    lengths = {size for tensor in tensors if tensor.dim() < 4 for size in tensor.shape[1:]}
    wide = [[axis for axis, size in enumerate(tensor.shape) if size > 1] for tensor in tensors]
    return [
        [a for a in axes if a == 0 or _has_changed(i, a, tensor, misfits)] if _is_image(tensor, lengths) else axes
        for i, (tensor, axes) in enumerate(zip(tensors, wide, strict=True))
    ]


def _is_image(tensor: torch.Tensor, lengths: Collection[int]) -> bool:
    """Whether a tensor has the form of images [N, C, H, W] or volumes [N, C, D, H, W], and not of a mask [N, 1, L, L].

    Args:
        tensor: of a call.
        lengths: the sizes behind the first axis of the call's tensors that are neither.
    """
    channels, sides = tensor.shape[1:2], tensor.shape[2:]
    if not tensor.is_floating_point() or not 2 <= len(sides) <= 3:
        return False
    square = len(set(sides)) == 1
    is_mask = channels[0] == 1 and square and sides[0] in lengths
    return len(sides) == 3 or (min(sides) >= _SMALLEST_IMAGE and (channels[0] <= _CHANNELS or square) and not is_mask)


def _has_changed(number: int, axis: int, tensor: torch.Tensor, misfits: Sequence[FixedSizes]) -> bool:
    return any(sizes[number][axis] != tensor.shape[axis] for sizes in misfits)


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
