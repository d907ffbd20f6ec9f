"""Tensors that one call leaves in the module for the next, through which eager PyTorch differentiates, too.

    self.hidden = torch.tanh(self.layer(x) + self.hidden)

A graph carries the values of buffers over, and neither gradients through them nor tensors among other attributes.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ontrain.capture import Captured, Kept
from ontrain.capture.ways_out import BROKEN
from ontrain.errors import CaptureError, OntrainError
from ontrain.internals import of
from ontrain.training.ortmodule.derived import deriving_hooks
from ontrain.training.ortmodule.entry import Entry
from ontrain.training.ortmodule.function import Call
from ontrain.training.ortmodule.settling import carrying

__all__ = ["Carried", "attributes_carried", "check_left", "leave", "refuse_attributes", "refuse_carried"]

_STATE = "pass it as an argument and return it from forward, which has gradients as in eager PyTorch"


def attributes_carried(
    module: nn.Module, captured: Captured, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Kept]:
    """Return the attributes in which forward leaves tensors that its next call reads.

    Warns:
        UserWarning: forward adds tensors to a list among the attributes; or it leaves tensors with gradients there that
            a graph cannot return, and does not read them itself.
    """
    for growing in (place for place in captured.retained if place.grows):
        warnings.warn(
            f"forward adds tensors to the list {growing.name!r} of {type(growing.module).__name__}; a graph leaves it "
            f"as it was. Return them from forward, or make a new list there: self.{growing.name} = [...].",
            stacklevel=7,
        )
    attributes = _attributes(captured)
    if not attributes:
        return []
    carried = _read_again(module, attributes, args, kwargs)
    for attribute in attributes:
        silent = attribute.is_output or attribute in carried or deriving_hooks(attribute.module)
        if attribute.differentiable and not silent:
            warnings.warn(
                f"forward leaves a tensor with a gradient in the attribute {attribute.name!r} of "
                f"{type(attribute.module).__name__}; a graph leaves the attribute as it was. If the loss needs it, "
                "return it from forward.",
                stacklevel=7,
            )
    return carried


def refuse_attributes(module: nn.Module, captured: Captured, args: Sequence[Any]) -> None:
    """Refuse a module that leaves tensors in attributes for its next call.

    Raises:
        CaptureError: it does.
    """
    attributes = _attributes(captured)
    for attribute in _read_again(module, attributes, args, {}) if attributes else ():
        raise Left(attribute).error()


def _attributes(captured: Captured) -> list[Kept]:
    return [place for place in captured.retained if not place.is_buffer and not place.grows]


def _read_again(
    module: nn.Module, attributes: Sequence[Kept], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Kept]:
    numbers = {id(part): number for number, part in enumerate(module.modules())}
    names = {(numbers[id(attribute.module)], attribute.name): attribute for attribute in attributes}
    return [names[name] for name in carrying(module, args, kwargs, list(names))]


class Left:
    """Stands in an attribute for the tensor that eager PyTorch would have left there for the next call."""

    def __init__(self, attribute: Kept) -> None:
        self._name, self._kind = attribute.name, type(attribute.module).__name__

    def error(self) -> CaptureError:
        """Return the refusal of a call that would read it."""
        return CaptureError(
            f"forward keeps a tensor from call to call in the attribute {self._name!r} of {self._kind}",
            reason="a graph carries values over in buffers only",
            way_out=f"register it as a buffer, self.register_buffer({self._name!r}, tensor), or set it anew before "
            f"each call; or, for gradients through several calls, {_STATE}; or {BROKEN}",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.error()


def leave(carried: Sequence[Kept]) -> None:
    """Have attributes tell whether they are set anew before the next call."""
    for attribute in carried:
        attribute.module.__dict__[attribute.name] = Left(attribute)


def check_left(carried: Sequence[Kept]) -> None:
    """Refuse a call that would read what the call before left.

    Raises:
        OntrainError: an attribute was not set anew. No fallback takes it, because the tensor is lost.
    """
    for attribute in carried:
        left = attribute.module.__dict__.get(attribute.name)
        if isinstance(left, Left):
            error = left.error()
            raise OntrainError(error.problem, reason=error.reason, way_out=error.way_out)


class Carried:
    """The calls whose gradients wait in buffers, which the next call would lead on."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[weakref.ref[Call], int]] = {}

    def check(self, entry: Entry) -> None:
        """Refuse a call that reads a buffer as a call left it whose backward is still to come.

        Raises:
            OntrainError: eager PyTorch would differentiate through both. No fallback takes it: the gradient is lost.
        """
        for name, buffer in entry.carried.items():
            held, version = self._calls.get(id(buffer), (None, 0))
            call = held() if held is not None else None
            if call is not None and not call.differentiated and version == of("torch.Tensor._version", buffer):
                raise OntrainError(
                    f"a call reads buffer {name!r}, which the call before left with a gradient",
                    reason="eager PyTorch's backward leads through both calls; here each has a graph of its own",
                    way_out=f"{_STATE}; or loop over the steps within forward; or, if the gradient is to end there, "
                    f"keep {name}.detach() in forward, or call backward() before the next call",
                )

    def note(self, entry: Entry, call: Call) -> None:
        """Note that a call has left gradients in buffers."""
        for buffer in entry.carried.values():
            self._calls[id(buffer)] = weakref.ref(call), of("torch.Tensor._version", buffer)


def refuse_carried(entry: Entry) -> None:
    """Refuse a module that leaves tensors in attributes for its next call, or gradients in buffers.

    Raises:
        CaptureError: it does.
    """
    for attribute in entry.left:
        raise Left(attribute).error()
    for name in entry.carried:
        raise CaptureError(
            f"forward leaves buffer {name!r} with a gradient, and reads it in the next call",
            reason="eager PyTorch's backward leads through both calls; a graph ends with its call",
        )
