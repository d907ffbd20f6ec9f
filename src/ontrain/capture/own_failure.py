"""A call that fails in eager PyTorch, too: then torch's own words say more than those of its tracer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ontrain.capture.chances import GeneratorStates
from ontrain.capture.changes import ChangedStateError
from ontrain.capture.decisions import TwoDevicesError, ValueBranchError
from ontrain.capture.source import user_frame
from ontrain.capture.structure import flatten, unflatten
from ontrain.capture.tracing import unchanged_attributes
from ontrain.errors import CaptureError

__all__ = ["FailingForwardError", "refuse_as_eager"]

_LENGTH = 400
"""Characters of torch's words up to which all lines of them are told."""


class FailingForwardError(CaptureError):
    """Forward fails in eager PyTorch as it does in a trace."""


def refuse_as_eager(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], error: CaptureError, prefix: str = ""
) -> None:
    """Refuse a call that cannot be captured in torch's own words, if PyTorch fails as well.

    PyTorch is asked once, where torch's tracer or a translation failed by an exception that is no refusal of ours. The
    module, its parameters and buffers and the random state stay as they are.

    Args:
        module: in the state in which it was called.
        args: positional arguments of the call.
        kwargs: its keyword arguments.
        error: why it cannot be captured.
        prefix: of the names of parameters, where the module wraps the user's.

    Raises:
        FailingForwardError: PyTorch fails.
    """
    if error.__cause__ is None or isinstance(error.__cause__, CaptureError):
        return
    if isinstance(error, ChangedStateError | ValueBranchError | TwoDevicesError):
        return
    failure = _failure(module, args, kwargs)
    if failure is None:
        return
    own = module.get_submodule(prefix.removesuffix("."))
    raise FailingForwardError(
        f"{type(own).__name__} fails in eager PyTorch, too: {type(failure).__name__}: {_words(failure)}",
        source=user_frame(failure.__traceback__),
        reason=f"it was called with {_forms(args, kwargs)}",
        way_out="give the call what that line takes, or correct the line",
    ) from failure


def _failure(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
    """What a call raises in eager PyTorch; None if it raises nothing."""
    buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers() if not buffer.is_sparse}
    parameters = [_Held(parameter) for parameter in module.parameters() if not is_lazy(parameter)]
    states = GeneratorStates()
    try:
        with torch.random.fork_rng(), unchanged_attributes(module), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            own = [_copied(value) for value in args], {name: _copied(value) for name, value in kwargs.items()}
            torch.func.functional_call(module, buffers, tuple(own[0]), own[1])
    except Exception as failure:  # noqa: BLE001 - the user's module may raise anything
        return failure
    finally:
        states.restore()
        for held in parameters:
            held.put_back()
    return None


class _Held:
    """A parameter's values, and the memory that they are in, of which an optimizer may hold views."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self._parameter, self._memory, self._values = parameter, parameter.detach(), parameter.detach().clone()

    def put_back(self) -> None:
        """Undo what a forward wrote."""
        if self._parameter.untyped_storage().data_ptr() != self._memory.untyped_storage().data_ptr():
            self._parameter.data = self._memory
        if not torch.equal(self._memory, self._values):
            self._memory.copy_(self._values)


def _copied(value: Any) -> Any:
    """The same with copies of its tensors, which forward may write to."""
    tensors, spec = flatten(value)
    return unflatten(spec, [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in tensors])


def _words(failure: Exception) -> str:
    text = str(failure).strip()
    return text if len(text) <= _LENGTH else text.splitlines()[0]


def _forms(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    tensors = [tensor for value in (*args, *kwargs.values()) for tensor in flatten(value)[0]]
    return ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors) or "no tensor"
