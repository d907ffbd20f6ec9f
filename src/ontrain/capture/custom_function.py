"""A user's `torch.autograd.Function`: is its backward the derivative of its forward, or a factor for each element?"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["has_derivative_of_forward", "has_factors", "with_factors"]

_SCALES = (1.0, 0.01, 30.0)
"""Of the random inputs: the usual range, around zero, and far out, where saturation and clipping show."""
_TOLERANCE = 1e-4


def has_derivative_of_forward(function: type[torch.autograd.Function], args: Sequence[Any]) -> bool:
    """Run a function on random tensors like `args`; compare its backward with autograd's of its forward.

    Many functions exist to save memory or to fuse kernels: their backward is the derivative written out, and a graph
    that holds their forward alone is right. Others change the gradient: straight-through estimators, gradient reversal.

    Args:
        function: its `forward` is called with a stand-in for the context.
        args: what `apply` was called with while tracing; float tensors are replaced by random ones in their shape.
    """
    return _found_apart(_agree, function, args)


def has_factors(function: type[torch.autograd.Function], args: Sequence[Any]) -> bool:
    """Run a function on random tensors like `args`: is its backward the adjoint times one number for each element?

    So are straight-through estimators, masks on a gradient, its scaling and reversal. The number may depend on the
    inputs, not on the adjoint.
    """
    return _found_apart(_multiplies, function, args)


def with_factors(function: type[torch.autograd.Function], elsewhere: Callable[[], bool]) -> Callable[..., Any]:
    """Return what to trace for the forward of a function that `has_factors`: it says what its backward says.

    Args:
        function: left as it is.
        elsewhere: whether the thread that calls is not the one that traces, and wants the function's own forward.
    """
    own, setup = function.forward, _setup(function)

    def forward(*given: Any) -> Any:
        if elsewhere():
            return own(*given)
        args = given if setup is not None else given[1:]
        context = _Context(args)
        if setup is None:
            y = own(context, *args)
        else:
            y = own(*args)
            setup(context, args, y)
        found = function.backward(context, torch.ones_like(y))
        pairs = zip(args, found if isinstance(found, tuple) else (found,), strict=False)
        kept = [(x, g) for x, g in pairs if isinstance(x, torch.Tensor) and x.requires_grad and g is not None]
        return torch.ops.ontrain.through(y, [x for x, _ in kept], [factor for _, factor in kept])

    return forward


@torch.library.custom_op("ontrain::through", mutates_args=())
def _through(y: torch.Tensor, xs: Sequence[torch.Tensor], factors: Sequence[torch.Tensor]) -> torch.Tensor:
    return y.clone()


@_through.register_fake
def _(y: torch.Tensor, xs: Sequence[torch.Tensor], factors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.empty_like(y)


class _Context:
    """What a function's own forward and backward keep for each other."""

    def __init__(self, args: Sequence[Any]) -> None:
        self.needs_input_grad = tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def __getattr__(self, name: str) -> Any:
        if name in _CONTEXT:
            return lambda *_, **__: None
        raise AttributeError(name)


def _setup(function: type[torch.autograd.Function]) -> Callable[..., Any] | None:
    own: Callable[..., Any] = function.setup_context
    return None if own is torch.autograd.Function.setup_context else own


def _found_apart(check: Callable[..., bool], function: type[torch.autograd.Function], args: Sequence[Any]) -> bool:
    found: list[bool] = []
    # A thread of its own has none of the modes that the trace is running under.
    thread = threading.Thread(target=lambda: found.append(check(function, args)))
    thread.start()
    thread.join()
    return found == [True]


def _multiplies(function: type[torch.autograd.Function], args: Sequence[Any]) -> bool:
    generator = torch.Generator().manual_seed(0)
    for scale in _SCALES:
        sample = pytree.tree_map(lambda value, s=scale: _random(value, s, generator), list(args))
        try:
            _, factors = _adjoints(function, sample, torch.ones_like)
            for _ in range(2):
                dy, found = _adjoints(function, sample, lambda y: _random(y.detach(), 1.0, generator))
                products = [None if one is None else dy * one for one in factors]
                alike = all(one is None or (one.shape == dy.shape and one.dtype == dy.dtype) for one in factors)
                if not alike or not all(map(_close, products, found)):
                    return False
        except Exception:  # noqa: BLE001 (the user's code, on inputs that it may not take)
            return False
    return True


def _adjoints(
    function: type[torch.autograd.Function], sample: Sequence[Any], make: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, Sequence[torch.Tensor | None]]:
    """The adjoint made for a function's only result, and what its backward makes of it."""
    y = function.apply(*sample)  # type: ignore[no-untyped-call]
    dy = make(y)
    wanted = [t for t in sample if isinstance(t, torch.Tensor) and t.requires_grad]
    return dy, torch.autograd.grad(y, wanted, dy, allow_unused=True)


def _agree(function: type[torch.autograd.Function], args: Sequence[Any]) -> bool:
    generator = torch.Generator().manual_seed(0)
    for scale in _SCALES:
        sample = pytree.tree_map(lambda value, s=scale: _random(value, s, generator), list(args))
        try:
            own, plain = _gradients(function.apply, sample), _gradients(_bare(function), sample)
        except Exception:  # noqa: BLE001 (the user's code, on inputs that it may not take)
            return False
        if own is None or plain is None or len(own) != len(plain) or not all(map(_close, own, plain)):
            return False
    return True


def _bare(function: type[torch.autograd.Function]) -> Any:
    """The function's forward under autograd, without its backward."""

    def run(*args: Any) -> Any:
        nothing = SimpleNamespace(
            needs_input_grad=tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in args),
            **{name: lambda *_, **__: None for name in _CONTEXT},
        )
        if function.setup_context is not torch.autograd.Function.setup_context:
            return function.forward(*args)
        return function.forward(nothing, *args)

    return run


_CONTEXT = ("save_for_backward", "save_for_forward", "mark_dirty", "mark_non_differentiable", "set_materialize_grads")


def _random(value: Any, scale: float, generator: torch.Generator) -> Any:
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return value.node.hint
    if not isinstance(value, torch.Tensor):
        return value
    shape = [size if isinstance(size, int) else size.node.hint for size in value.shape]
    if not value.dtype.is_floating_point:
        return torch.zeros(shape, dtype=value.dtype)
    made = torch.randn(shape, generator=generator, dtype=torch.float32) * scale
    return made.to(value.dtype).requires_grad_(value.requires_grad)


def _gradients(run: Any, sample: Sequence[Any]) -> list[torch.Tensor | None] | None:
    """Outputs, and the gradients of a weighted sum of them; None if nothing depends on the inputs."""
    wanted = [t for t in pytree.tree_leaves(sample) if isinstance(t, torch.Tensor) and t.requires_grad]
    outputs = [t for t in pytree.tree_leaves(run(*sample)) if isinstance(t, torch.Tensor)]
    active = [t for t in outputs if t.requires_grad]
    if not active:
        return None
    weights = [torch.linspace(0.5, 1.5, t.numel()).view(t.shape).to(t.dtype) for t in active]
    return [*[t.detach() for t in outputs], *torch.autograd.grad(active, wanted, weights, allow_unused=True)]


def _close(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and torch.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
