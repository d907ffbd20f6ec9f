"""Functions that forward differentiates by `torch.func`: their gradients named in the trace as those of autograd are.

torch computes them on levels of tensors that wrap others, which a trace does not see. Here a function runs on its
arguments themselves, as points of their own, and what it returns is differentiated by these.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from ontrain.capture.derivatives import gradients, point
from ontrain.errors import CaptureError
from ontrain.internals import private

__all__ = ["transforms"]

_TRANSFORMS = "torch._functorch.eager_transforms"


def transforms(elsewhere: Callable[[], bool]) -> dict[str, Callable[[Any], Any]]:
    """Return what to make of torch's own functions, by name, while a forward is traced.

    `torch.func.grad`, `vjp`, `jacrev` and `hessian` are made of the first five; `jvp` and `jacfwd` of the sixth.

    Args:
        elsewhere: whether the calling thread is another than the one that traces.
    """

    def here(ours: Callable[..., Any]) -> Callable[[Any], Any]:
        return lambda own: lambda *args, **kwargs: (own if elsewhere() else ours)(*args, **kwargs)

    def around(wrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda own: here(wrap(own))(own)

    return {
        "torch.autograd.forward_ad.enter_dual_level": here(_refuse_tangents),
        f"{_TRANSFORMS}.grad_increment_nesting": here(_no_level),
        f"{_TRANSFORMS}._wrap_all_tensors": here(_points),
        f"{_TRANSFORMS}._create_differentiable": here(_same),
        f"{_TRANSFORMS}._undo_create_differentiable": here(_results),
        f"{_TRANSFORMS}._autograd_grad": here(_gradients),
        f"{_TRANSFORMS}._jvp_with_argnums": here(_jvp),
        "torch._functorch.apis.vmap_impl": around(_with_batch),
        "torch._functorch.predispatch._remove_batch_dim_impl": around(_untraced),
        "torch._vmap_internals._vmap": here(_row_by_row),
    }


class _Batches(threading.local):
    """For each `torch.vmap` that is under way in this thread a number of its batch."""

    def __init__(self) -> None:
        self.numbers = list[torch.Tensor]()


_batches = _Batches()


def _with_batch(own: Callable[..., Any]) -> Callable[..., Any]:
    """vmap that keeps a number of its batch while the function runs.

    A trace sees it put the batch of its results first only.
    """

    def run(function: Callable[..., Any], in_dims: Any, out_dims: Any, *options: Any, **kwargs: Any) -> Any:
        def batched(*args: Any, **named: Any) -> Any:
            tensors = [leaf for leaf in _leaves((args, named)) if isinstance(leaf, torch.Tensor)]
            numbers = [x.detach().flatten()[:0].sum() for x in tensors]  # no -1, as a batch may be empty
            _batches.numbers.append(functools.reduce(torch.add, numbers))
            try:
                return function(*args, **named)
            finally:
                _batches.numbers.pop()

        return _moved(own(batched, in_dims, 0, *options, **kwargs), out_dims)

    return run


def _untraced(remove: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """What ends a batch, which is one node of the trace: it moves the batch first on a tensor that no trace knows."""

    def run(*args: Any) -> torch.Tensor:
        with private("torch.fx.experimental.proxy_tensor.disable_proxy_modes_tracing")():
            return remove(*args)

    return run


def _moved(results: Any, dims: Any) -> Any:
    """Results with their batch moved from the first dimension to those that `torch.vmap` was asked for."""
    tree = private("torch.utils._pytree")
    leaves, spec = tree.tree_flatten(results)
    places = tree._broadcast_to_and_flatten(dims, spec)
    if places is None or None in places:
        raise CaptureError(
            f"forward calls torch.vmap with out_dims={dims}", way_out="give a dimension for each result of the function"
        )
    moved = [y.movedim(0, place) if place else y for y, place in zip(leaves, places, strict=True)]
    return tree.tree_unflatten(moved, spec)


def _row_by_row(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
    """What `torch.autograd.grad` does with many adjoints, row by row: a trace does not see its vmap."""

    def run(adjoints: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor | None, ...]:
        rows = [function(row) for row in zip(*(dy.unbind() for dy in adjoints), strict=True)]
        return tuple([None if gs[0] is None else torch.stack(gs) for gs in zip(*rows, strict=True)])

    return run


@contextmanager
def _no_level() -> Iterator[bool]:
    """In place of a level, whether gradients are recorded around it: within it they always are."""
    yield torch.is_grad_enabled()


def _same(tree: Any, level: bool) -> Any:
    return tree


def _results(tree: Any, level: bool) -> Any:
    return tree if level else _map(lambda x: x.detach() if _is_number(x) else x, tree)


def _points(tree: Any, level: bool) -> Any:
    return _map(lambda x: point(x, _batches.numbers) if _is_number(x) else x, tree)


def _is_number(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def _gradients(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
    grad_outputs: Sequence[torch.Tensor] | None = None, retain_graph: bool = False, create_graph: bool = True,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    adjoints = [torch.ones_like(y) for y in outputs] if grad_outputs is None else grad_outputs
    return gradients(outputs, adjoints, inputs, differentiable=create_graph)


def _jvp(
    function: Callable[..., Any], primals: Any, tangents: Any, argnums: Any, *, strict: bool = False, has_aux: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """The gradient, by its adjoint, of a gradient: that is linear in the adjoint, and its values are never computed."""
    if strict:
        raise CaptureError("forward calls torch.func.jvp with strict=True", way_out="leave strict out")
    if not isinstance(primals, tuple):
        raise TypeError("jvp(f, primals, tangents): Expected primals to be a tuple")
    results, pull, *aux = private(f"{_TRANSFORMS}._vjp_with_argnums")(
        function, *primals, argnums=argnums, has_aux=has_aux
    )
    adjoints = _map(lambda y: point(torch.zeros_like(y), _batches.numbers), results)
    pulled = _leaves(pull(adjoints, create_graph=True))
    pushed = gradients(pulled, _leaves(tangents), _leaves(adjoints), differentiable=True)
    left = iter(pushed)
    return results, _map(lambda _: next(left), results), *aux


def _refuse_tangents() -> NoReturn:
    raise CaptureError(
        "forward uses forward-mode differentiation, torch.autograd.forward_ad",
        reason="a trace holds no tangents beside its values",
        way_out="call torch.func.jvp or torch.func.jacfwd, which a graph computes by gradients",
    )


def _leaves(tree: Any) -> list[Any]:
    leaves: list[Any] = private("torch.utils._pytree").tree_leaves(tree)
    return leaves


def _map(function: Callable[[Any], Any], tree: Any) -> Any:
    return private("torch.utils._pytree").tree_map(function, tree)
