"""Gradients that forward asks for itself, `torch.autograd.grad`: named in the trace, computed by what a plan adds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

__all__ = ["traced_gradients"]


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
    gradients = iter(torch.ops.ontrain.vjp(list(outputs), list(adjoints), wanted))
    named = [next(gradients) if use else None for use in used]
    return tuple([g if g is None or differentiable else g.detach() for g in named])


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
