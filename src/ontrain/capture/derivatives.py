"""Gradients that forward asks for itself, `torch.autograd.grad`: named in the trace, computed by what a plan adds.

A function that `torch.vmap` calls with a batch computes on the whole batch, so a gradient of it is one of the whole
batch, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

__all__ = ["differentiated_by", "gradients", "leaves_of", "point", "traced_gradients"]


def traced_gradients(
    run: Callable[..., Any], outputs: Sequence[torch.Tensor], adjoints: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor], *, differentiable: bool, allow_unused: bool,
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """Return what stands for the gradients of outputs by inputs in a trace.

    Args:
        run: autograd's own way to them, which raises what eager raises.
        outputs: what is differentiated.
        adjoints: of each output, in its shape.
        inputs: what it is differentiated by.
        differentiable: whether the gradients have gradients.
        allow_unused: whether there may be inputs that no output depends on; their gradient is None.
    """
    reached = _reached([output for output in outputs if output.requires_grad])
    used = [x.requires_grad and _place(x) in reached for x in inputs]
    if not any(used) or (not all(used) and not allow_unused):
        own: tuple[torch.Tensor | None, ...] = run()
        return own
    wanted = [x for x, use in zip(inputs, used, strict=True) if use]
    named = iter(gradients(outputs, adjoints, wanted, differentiable=differentiable))
    return tuple([next(named) if use else None for use in used])


def gradients(
    outputs: Sequence[torch.Tensor], adjoints: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], *,
    differentiable: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Return what stands for the gradients of outputs by inputs; zeros by those that no output depends on."""
    named = torch.ops.ontrain.vjp(list(outputs), list(adjoints), list(inputs))
    return tuple([g if differentiable else g.detach() for g in named])


def point(x: torch.Tensor, likes: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return x itself as what gradients are taken by: nothing that was computed of x before depends on it.

    Args:
        x: any tensor.
        likes: whose batches of `torch.vmap` the result has, so that each row of a batch has its own gradient.
    """
    same: torch.Tensor = torch.ops.ontrain.point(x, list(likes))
    return same


def leaves_of(outputs: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors at which autograd's record of how outputs were computed ends, in its order."""
    leaves = [output for output in outputs if output.requires_grad and output.grad_fn is None]
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen = set(waiting)
    for node in waiting:
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves.append(leaf)
        following = dict.fromkeys(after for after, _ in node.next_functions if after is not None and after not in seen)
        seen.update(following)
        waiting.extend(following)
    return leaves


def differentiated_by(node: fx.Node) -> bool:
    """Whether a traced program takes a gradient by a node's tensor."""
    users: Iterable[Any] = node.users
    return any(user.target is torch.ops.ontrain.vjp.default and node in user.args[2] for user in users)


def _place(tensor: torch.Tensor) -> Hashable:
    """Where a tensor is in autograd's graph: a leaf is its own place."""
    return (tensor.grad_fn, tensor.output_nr) if tensor.grad_fn is not None else id(tensor)


def _reached(outputs: Sequence[torch.Tensor]) -> set[Hashable]:
    """The places in autograd's graph that outputs are computed from, their own among them."""
    reached: set[Hashable] = {_place(output) for output in outputs}
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        for node, number in waiting.pop().next_functions:
            if node is None:
                continue
            leaf = getattr(node, "variable", None)
            reached.add((node, number) if leaf is None else id(leaf))
            if node not in seen:
                seen.add(node)
                waiting.append(node)
    return reached


@torch.library.custom_op("ontrain::vjp", mutates_args=())
def _vjp(
    outputs: Sequence[torch.Tensor], adjoints: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    raise NotImplementedError("a plan has the operators that compute it")


@_vjp.register_fake
def _(
    outputs: Sequence[torch.Tensor], adjoints: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    return [torch.empty_like(x) for x in inputs]


def _nothing(context: Any, *_: Any) -> tuple[None, None, None]:
    raise NotImplementedError("a trace computes no gradient")


# So that autograd's graph goes on through it.
_vjp.register_autograd(_nothing)


@_vjp.register_vmap
def _(
    info: Any, dims: Sequence[Any], outputs: Sequence[torch.Tensor], adjoints: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
) -> tuple[list[torch.Tensor], list[int]]:  # fmt: skip
    """Rows do not read one another, so a batch's gradient by a batch is that of each row; by what rows share it is not.

    The batch of an input stays where it lies: a moved one is another tensor.
    """
    of_outputs, of_adjoints, of_inputs = dims
    rows = int(info.batch_size) if None in of_inputs else info.batch_size
    ys = [_rows(y, dim, rows) for y, dim in zip(outputs, of_outputs, strict=True)]
    dys = [_rows(dy, dim, rows) for dy, dim in zip(adjoints, of_adjoints, strict=True)]
    batched = [x for x, dim in zip(inputs, of_inputs, strict=True) if dim is not None]
    shared = [x for x, dim in zip(inputs, of_inputs, strict=True) if dim is None]
    of_batched = iter(torch.ops.ontrain.vjp(ys, dys, batched) if batched else ())
    by_row = [
        torch.ops.ontrain.vjp(_row(outputs, of_outputs, row), [dy[row] for dy in dys], shared)
        for row in (range(rows) if shared else ())
    ]
    of_shared = iter([torch.stack(gs) for gs in zip(*by_row, strict=True)])
    named = [next(of_shared) if dim is None else next(of_batched) for dim in of_inputs]
    return named, [dim or 0 for dim in of_inputs]


def _rows(x: torch.Tensor, dim: int | None, count: int) -> torch.Tensor:
    """A batch along the first dimension."""
    return x.expand(count, *x.shape) if dim is None else x.movedim(dim, 0)


def _row(xs: Sequence[torch.Tensor], dims: Sequence[int | None], row: int) -> list[torch.Tensor]:
    return [x if dim is None else x.select(dim, row) for x, dim in zip(xs, dims, strict=True)]


@torch.library.custom_op("ontrain::point", mutates_args=())
def _point(x: torch.Tensor, likes: Sequence[torch.Tensor]) -> torch.Tensor:
    return x.clone()


@_point.register_fake
def _(x: torch.Tensor, likes: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.empty_like(x)


@_point.register_vmap
def _(info: Any, dims: Sequence[Any], x: torch.Tensor, likes: Sequence[torch.Tensor]) -> tuple[torch.Tensor, int]:
    return torch.ops.ontrain.point(_rows(x, dims[0], info.batch_size), likes), 0


_point.register_autograd(_nothing)
