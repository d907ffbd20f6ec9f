"""What a forward does with torch's autograd that a trace of its operators cannot show: carried over, or refused."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils import checkpoint

from ontrain.capture.alignment import ctc_loss
from ontrain.capture.custom_function import OwnBackward, has_derivative_of_forward, own_setup_of
from ontrain.errors import CaptureError

__all__ = ["traced_autograd", "traced_here"]


@contextmanager
def traced_autograd() -> Iterator[None]:
    """Trace the backward of functions that bring one; refuse hooks on gradients, and `backward` inside a forward.

    A trace by itself holds the operators of the forward only, so each of them would be lost without a word, and the
    gradients would be others than eager's. A checkpoint is taken as its function, which has the same gradients.

    Raises:
        CaptureError: from within the forward, at the call concerned.
    """
    with ExitStack() as stack:
        for owner, name, made in _replacements():
            stack.enter_context(mock.patch.object(owner, name, made))
        _own.tracing, _own.stack, _own.taken, _own.owns, _own.modes = True, stack, set(), {}, []
        try:
            _check_that_functions_are_seen()
            yield
        finally:
            _own.tracing = False


class _Canary(torch.autograd.Function):
    """Changes the gradient: tracing it must be refused."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *adjoints: Any) -> Any:
        return 2 * adjoints[0]


@functools.cache
def _check_that_functions_are_seen() -> None:
    """Make sure, once, that this torch lets us see a call of `Function.apply`.

    Raises:
        CaptureError: it does not, so functions of the user's own would lose their backward without a word.
    """
    try:
        with torch.enable_grad():
            _Canary.apply(torch.ones(1, requires_grad=True))  # type: ignore[no-untyped-call]
    except CaptureError:
        return
    raise CaptureError(
        f"torch {torch.__version__} calls autograd functions in a way that capture does not know",
        reason="a torch.autograd.Function in the module would lose its own backward, and nothing would say so",
        way_out="use a version of torch that this version of ontrain was made for (see docs/dependencies.md)",
    )


_own = threading.local()
_TORCHS = frozenset({"torch._library.autograd", "torch.utils.checkpoint", "torch._higher_order_ops.cond",
                     "torch._higher_order_ops.while_loop"})  # fmt: skip


def traced_here() -> bool:
    """Whether the calling thread runs a forward to trace it."""
    return not _elsewhere()


def _elsewhere() -> bool:
    """Whether the calling thread is another than the one that traces: it trains meanwhile, or tries a function out."""
    return not getattr(_own, "tracing", False)


def _replacements() -> list[tuple[Any, str, Any]]:
    functions: Any = torch.autograd
    return [
        (torch._functorch.utils, "unwrap_dead_wrappers", _called(torch._functorch.utils.unwrap_dead_wrappers)),
        (checkpoint.CheckpointFunction, "apply", _plain(checkpoint.CheckpointFunction.apply)),
        # What a checkpoint that is not reentrant does before and after its function. One inside another would have its
        # result detached in a trace.
        (checkpoint, "_checkpoint_without_reentrant_generator",
         _nothing_around(checkpoint._checkpoint_without_reentrant_generator)),
        # What grad, backward and Tensor.backward call, under whatever name the forward knows them.
        (functions, "_engine_run_backward",
         _refuses(functions._engine_run_backward, "computes gradients itself", *_BACKWARD)),
        (torch.Tensor, "register_hook",
         _refuses(torch.Tensor.register_hook, "registers a hook on a tensor's gradient", *_HOOK)),
        (torch, "ctc_loss", ctc_loss),
        (torch._VF, "_pack_padded_sequence",
         _refuses(torch._VF._pack_padded_sequence, "packs sequences of different lengths", *_PACKED)),
    ]  # fmt: skip


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


def _refuses(function: Callable[..., Any], problem: str, reason: str, way_out: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        if _elsewhere():
            return function(*args, **kwargs)
        raise CaptureError(f"forward {problem}", reason=reason, way_out=way_out)

    return refuse


def _called(unwrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What `Function.apply` does first with its arguments, here also the place to see which function it is.

    `apply` itself may be bound already: `relu = MyRelu.apply` at the head of a file is usual.
    """

    def traced(args: Any) -> Any:
        if _elsewhere():
            return unwrap(args)
        caller = inspect.currentframe()
        function = caller.f_back.f_locals.get("cls") if caller is not None and caller.f_back is not None else None
        if function is not None and function.__module__ in _TORCHS:
            # A library's own operator, branch or loop: it is one node, which is differentiated, or refused by name.
            # And torch 2.11 keeps a checkpoint's arguments in a function without results.
            return unwrap(args)
        if function is None:
            return unwrap(args)
        if function is _Canary:
            raise CaptureError("forward calls an autograd function")
        enabled = torch.is_grad_enabled()
        own = _own.owns.get(function.forward, function.forward)  # a base's may stand for it already
        setup = _own.owns.get(function.setup_context, own_setup_of(function))
        taken = function in _own.taken
        if not taken and enabled and _any_requires_grad(args) and not has_derivative_of_forward(function, args):
            _own.taken.add(function)
            with_backward = OwnBackward(function, own, setup)
            _stand_in(function, "forward", own, with_backward.forward)
            if setup is not None:
                _stand_in(function, "setup_context", setup, with_backward.setup_context)
        elif not taken and function.forward is own:
            _stand_in(function, "forward", own, own)
            if setup is not None:
                _stand_in(function, "setup_context", setup, _without_gradient(setup))
        _own.modes.append(enabled)
        return unwrap(args)

    return traced


def _stand_in(
    function: type[torch.autograd.Function], name: str, own: Callable[..., Any], traced: Callable[..., Any]
) -> None:
    """Let `traced` be a function's forward or setup_context while the thread traces; `apply` calls them in this order.

    Behind it the trace learns the mode that `apply` goes back to unseen: else a no_grad inside would go on behind it.
    """

    @functools.wraps(own)  # `apply` asks the signature for defaults
    def called(*args: Any) -> Any:
        if _elsewhere():
            return own(*args)
        enabled = _own.modes.pop() if name == "forward" else torch.is_grad_enabled()
        made = (traced if enabled else own)(*args)
        torch._C._set_grad_enabled(enabled)
        return made

    _own.owns[called] = own
    _own.stack.enter_context(mock.patch.object(function, name, staticmethod(called)))


def _without_gradient(setup: Callable[..., Any]) -> Callable[..., Any]:
    """A setup_context under the mode that `apply` calls it in, seen by the trace."""

    def run(*args: Any) -> Any:
        torch._C._set_grad_enabled(False)
        return setup(*args)

    return run


def _plain(apply: Callable[..., Any]) -> Callable[..., Any]:
    def run(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return apply(function, preserve_rng_state, *args) if _elsewhere() else function(*args)

    return run


def _nothing_around(generator: Callable[..., Iterator[None]]) -> Callable[..., Iterator[None]]:
    def run(*args: Any, **kwargs: Any) -> Iterator[None]:
        if _elsewhere():
            yield from generator(*args, **kwargs)
        else:
            yield

    return run


def _any_requires_grad(values: Sequence[Any]) -> bool:
    return any(
        value.requires_grad
        if isinstance(value, torch.Tensor)
        else isinstance(value, list | tuple) and _any_requires_grad(value)
        for value in values
    )
