"""What a forward does with torch's autograd that a trace of its operators cannot show: carried over, or refused."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from ontrain.capture.alignment import ctc_loss
from ontrain.capture.cumulative import cumulative_averages
from ontrain.capture.custom_function import OwnBackward, current_backward, has_derivative_of_forward, own_setup_of
from ontrain.capture.derivatives import traced_gradients
from ontrain.capture.groups import grouped_products
from ontrain.capture.keys import keys_of_values
from ontrain.capture.least_squares import lstsq
from ontrain.capture.packing import packings
from ontrain.capture.reseeding import reseedings
from ontrain.capture.saved_tensors import hooks_on_saved_tensors
from ontrain.capture.transforms import transforms
from ontrain.capture.ways_out import BROKEN
from ontrain.errors import CaptureError
from ontrain.internals import LIBRARY_FUNCTIONS, lost_calls_refused, of, private, wrapped

__all__ = ["check_functions", "traced_autograd", "traced_here"]


@contextmanager
def traced_autograd() -> Iterator[None]:
    """Trace the backward of functions that bring one; refuse hooks on gradients, and `backward` inside a forward.

    A trace by itself holds the operators of the forward only, so each of them would be lost without a word, and the
    gradients would be others than eager's. A checkpoint is taken as its function, which has the same gradients.

    Raises:
        CaptureError: from within the forward, at the call concerned.
    """
    with ExitStack() as stack:
        stack.enter_context(wrapped(_wrappers()))
        stack.enter_context(lost_calls_refused())
        _own.tracing, _own.calls = True, _Calls()
        try:
            yield
        finally:
            _own.tracing, _own.calls = False, None


_own = threading.local()


def traced_here() -> bool:
    """Whether the calling thread runs a forward to trace it."""
    return not _elsewhere()


def check_functions(results: Iterable[torch.Tensor]) -> None:
    """Make sure that every autograd function on the way to a traced forward's results has been dealt with.

    Autograd's own record of the forward holds them all, however this torch calls them.

    Raises:
        CaptureError: one was called in a way that the trace does not see, so its backward would be lost.
    """
    left = [node for result in results if (node := result.grad_fn) is not None]
    known = set(left)
    while left:
        node = left.pop()
        function = (
            of("torch.autograd.Function.apply._forward_cls", node) if isinstance(node, BackwardCFunction) else None
        )
        if function is not None and not _of_torch(function) and function not in _own.calls.seen:
            raise CaptureError(
                f"torch {torch.__version__} calls the autograd function {function.__module__}.{function.__qualname__} "
                "in a way that capture does not know",
                reason="its own backward would be lost, and nothing would say so",
                way_out="write its forward with tensor operators that torch differentiates, or use a version of torch "
                "that docs/dependencies.md lists",
            )
        following = {after for after, _ in node.next_functions if after is not None} - known
        known |= following
        left.extend(following)


def _elsewhere() -> bool:
    """Whether the calling thread is another than the one that traces: it trains meanwhile, or tries a function out."""
    return not getattr(_own, "tracing", False)


def _wrappers() -> dict[str, Callable[[Any], Any]]:
    def refusing(problem: str, why: tuple[str, str]) -> Callable[[Any], Any]:
        return lambda own: _refuses(own, problem, *why)

    checkpoint = "torch.utils.checkpoint"
    here = [
        wrappers(_elsewhere)
        for wrappers in (
            transforms,
            packings,
            keys_of_values,
            reseedings,
            cumulative_averages,
            hooks_on_saved_tensors,
        )  # fmt: skip
    ]
    return dict(item for each in here for item in each.items()) | {
        **grouped_products(),
        "torch.autograd.function.FunctionMeta.__getattribute__": lambda _: _attribute,  # else `check_functions` refuses
        f"{checkpoint}.CheckpointFunction.apply": _plain,
        # What a checkpoint that is not reentrant does before and after its function. One inside another would have its
        # result detached in a trace. A torch has the one or the other.
        f"{checkpoint}._checkpoint_without_reentrant_generator": _nothing_around,
        f"{checkpoint}._checkpoint_without_reentrant_generator_impl": _nothing_around,
        # What grad, backward and Tensor.backward call, under whatever name the forward knows them.
        "torch.autograd._engine_run_backward": _traced_backward,
        "torch.Tensor.register_hook": refusing("registers a hook on a tensor's gradient", _HOOK),
        "torch.ctc_loss": lambda _: ctc_loss,
        "torch.linalg.lstsq": lambda _: lstsq,
    }


_BACKWARD = (
    "a graph leaves the gradients of parameters to the backward of what it returns",
    "take the gradients as values, torch.autograd.grad(loss, list(self.parameters()), create_graph=True), or move "
    f"backward out of forward; in a library's layer: {BROKEN}",
)
_HOOK = (
    "a graph computes gradients without calling Python",
    "to scale a gradient by k write x * k + (x * (1 - k)).detach(); else leave the hook out; if a wrapper around the "
    "module sets it, as Lightning's Fabric does, wrap inside: fabric.setup(ORTModule(model))",
)


def _traced_backward(run: Callable[..., Any]) -> Callable[..., Any]:
    """Name the gradients that forward asks for in the trace.

    Only the backward of a function of the user's may accumulate some: they are its own then.
    """
    refuse = _refuses(run, "calls backward", *_BACKWARD)

    def gradients(
        outputs: Any, adjoints: Any, keep_graph: bool, create_graph: bool, inputs: Any, allow_unreachable: bool = False,
        accumulate_grad: bool = False,
    ) -> Any:  # fmt: skip
        eager = functools.partial(
            run, outputs, adjoints, keep_graph, create_graph, inputs, allow_unreachable, accumulate_grad=accumulate_grad
        )
        if _elsewhere():
            return eager()
        if accumulate_grad:
            backward = current_backward()
            if backward is None:
                return refuse()
            backward.accumulate(eager, outputs, adjoints, inputs)
            return None
        return traced_gradients(
            eager, outputs, adjoints, inputs, differentiable=create_graph, allow_unused=allow_unreachable
        )

    return gradients


def _refuses(function: Callable[..., Any], problem: str, reason: str, way_out: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        if _elsewhere():
            return function(*args, **kwargs)
        raise CaptureError(f"forward {problem}", reason=reason, way_out=way_out)

    return refuse


class _Calls:
    """The calls of autograd functions in one trace: what each runs in place of its forward and setup_context.

    `apply` is written in C since torch 2.14, and may be bound already: `relu = MyRelu.apply` at the head of a file is
    usual. What every version does is ask the class, and in this order: for `_backward_cls`, once and while the caller's
    mode holds; for `forward`, to call it; for `setup_context`, to call it behind a forward that has no context.
    """

    def __init__(self) -> None:
        self.seen = set[type[torch.autograd.Function]]()
        self._begun: tuple[type[torch.autograd.Function], bool] | None = None
        self._setup: tuple[type[torch.autograd.Function], Callable[..., Any]] | None = None
        self._own_backward = set[type[torch.autograd.Function]]()

    def attribute(self, function: type[torch.autograd.Function], name: str, own: Any) -> Any:
        """Return what a class answers to the question for `name`, whose own answer is `own`."""
        if name == "_backward_cls" and not _of_torch(function):
            self._begun = function, torch.is_grad_enabled()
        elif name == "forward" and self._begun is not None and self._begun[0] is function:
            enabled, self._begun = self._begun[1], None
            self.seen.add(function)
            return self._forward(function, own, enabled)
        elif name == "setup_context" and self._setup is not None and self._setup[0] is function:
            setup, self._setup = self._setup[1], None
            return setup
        return own

    def _forward(
        self, function: type[torch.autograd.Function], own: Callable[..., Any], enabled: bool
    ) -> Callable[..., Any]:
        """Behind it the trace learns the mode that `apply` goes back to unseen: a no_grad inside would go on."""
        setup = own_setup_of(function)

        def forward(*args: Any) -> Any:
            keeps: Callable[..., Any] | None
            if enabled and self._has_own_backward(function, args if setup is not None else args[1:]):
                traced = OwnBackward(function, own, setup)
                result, keeps, mode = traced.forward(*args), traced.setup_context, True
            else:
                if enabled:
                    # What it calls is differentiated, too. `apply` goes without gradients meanwhile, unseen by the
                    # trace, and a function called inside would go back to that for the trace to see.
                    private("torch._C._set_grad_enabled")(True)
                result, keeps, mode = own(*args), setup, False
            if setup is not None and keeps is not None:
                self._setup = function, _in_mode(mode, keeps)
            private("torch._C._set_grad_enabled")(enabled)
            return result

        return forward

    def _has_own_backward(self, function: type[torch.autograd.Function], args: Sequence[Any]) -> bool:
        if function in self._own_backward:
            return True
        if not _any_requires_grad(args) or has_derivative_of_forward(function, args):
            return False
        self._own_backward.add(function)
        return True


def _attribute(function: type[torch.autograd.Function], name: str) -> Any:
    own = type.__getattribute__(function, name)
    return own if _elsewhere() else _own.calls.attribute(function, name, own)


def _in_mode(enabled: bool, setup: Callable[..., Any]) -> Callable[..., Any]:
    """A setup_context under a mode that the trace sees, and which ends with it."""

    def run(*args: Any) -> None:
        before = torch.is_grad_enabled()
        private("torch._C._set_grad_enabled")(enabled)
        setup(*args)
        private("torch._C._set_grad_enabled")(before)

    return run


def _of_torch(function: type[torch.autograd.Function]) -> bool:
    """Whether a function is a library's own operator, branch or loop: one node, differentiated or refused by name.

    And torch 2.11 keeps a checkpoint's arguments in a function without results.
    """
    return function.__module__ in LIBRARY_FUNCTIONS


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
