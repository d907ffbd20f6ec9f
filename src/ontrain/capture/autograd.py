"""What a forward does with torch's autograd that a trace of its operators cannot show: carried over, or refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils import checkpoint

from ontrain.capture.alignment import ctc_loss
from ontrain.errors import CaptureError

__all__ = ["traced_autograd"]


@contextmanager
def traced_autograd() -> Iterator[None]:
    """Refuse functions with a backward of their own, hooks on gradients and `backward` while a forward is traced.

    The trace holds the operators of the forward only, so each of them would be lost without a word, and the gradients
    would be others than eager's. A reentrant checkpoint is taken as its function, which has the same gradients.

    Raises:
        CaptureError: from within the forward, at the call concerned.
    """
    with ExitStack() as stack:
        for owner, name, made in _replacements():
            stack.enter_context(mock.patch.object(owner, name, made))
        yield


def _replacements() -> list[tuple[Any, str, Any]]:
    return [
        (torch._functorch.utils, "unwrap_dead_wrappers", _called(torch._functorch.utils.unwrap_dead_wrappers)),
        (checkpoint.CheckpointFunction, "apply", _plain),
        # What grad, backward and Tensor.backward call, under whatever name the forward knows them.
        (torch.autograd, "_engine_run_backward", _refuses("computes gradients itself", *_BACKWARD)),
        (torch.Tensor, "register_hook", _refuses("registers a hook on a tensor's gradient", *_HOOK)),
        (torch, "ctc_loss", ctc_loss),
        (torch._VF, "_pack_padded_sequence", _refuses("packs sequences of different lengths", *_PACKED)),
    ]


_BACKWARD = (
    "the gradients are made from the graph, after forward",
    "move torch.autograd.grad or backward out of forward, or write the derivative with tensor operators",
)
_HOOK = (
    "a graph computes gradients without calling Python",
    "to scale a gradient by k write x * k + (x * (1 - k)).detach(); else leave the hook out",
)
_PACKED = (
    "a packed sequence has as many rows as the lengths say, and those are data",
    "feed the padded batch, and mask the loss or the outputs by length",
)  # fmt: skip


def _refuses(problem: str, reason: str, way_out: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise CaptureError(f"forward {problem}", reason=reason, way_out=way_out)

    return refuse


def _called(unwrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What `Function.apply` does first with its arguments, here also the place to see which function it is.

    `apply` itself may be bound already: `relu = MyRelu.apply` at the head of a file is usual.
    """

    def traced(args: Any) -> Any:
        caller = inspect.currentframe()
        function = caller.f_back.f_locals.get("cls") if caller is not None and caller.f_back is not None else None
        if function is not None and function.__module__ == "torch._library.autograd":
            # A library's own operator: it is one node, with a translation that is differentiated, or refused by name.
            return unwrap(args)
        if function is None or not torch.is_grad_enabled() or not _any_requires_grad(args):
            return unwrap(args)
        raise CaptureError(
            f"forward calls the autograd function {function.__module__}.{function.__qualname__}",
            reason="the trace sees its forward only, so its own backward would be lost and the gradients be wrong",
            way_out="write it with tensor operators; a value y with the gradient of x is x + (y - x).detach()",
        )

    return traced


def _plain(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
    return function(*args)


def _any_requires_grad(values: Sequence[Any]) -> bool:
    return any(
        value.requires_grad
        if isinstance(value, torch.Tensor)
        else isinstance(value, list | tuple) and _any_requires_grad(value)
        for value in values
    )
