"""Operators whose results are as long as values say, run by torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir
import torch

from ontrain.errors import GraphError

__all__ = ["non_zero", "run_step", "unique"]


def non_zero(x: torch.Tensor) -> torch.Tensor:
    """Return the places of what is not zero, int64 of shape [rank, count], by rows."""
    places = torch.nonzero(x.reshape(1) if not x.dim() else x)
    return places[:, : x.dim()].T.contiguous()


def unique(x: torch.Tensor, axis: int | None = None, *, in_order: bool = True) -> list[torch.Tensor]:
    """Return values, first places, the place of each among the values, counts; in order, or as they come.

    See https://onnx.ai/onnx/operators/onnx__Unique.html.
    """
    # Along an axis, torch compares neighbours after a sort that NaNs disturb: a number could come twice.
    along, axis = (None, 0) if axis is None or x.dim() == 1 else (axis, axis)
    values, inverse, counts = torch.unique(x, sorted=True, return_inverse=True, return_counts=True, dim=along)
    inverse = inverse.reshape(-1)
    size = values.shape[axis]
    first = torch.full((size,), inverse.numel(), dtype=torch.int64, device=x.device)
    places = torch.arange(inverse.numel(), device=x.device)
    first = first.scatter_reduce(0, inverse, places, "amin")
    if not in_order:
        order = torch.argsort(first)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(size, device=x.device)
        values, first, counts = values.index_select(axis, order), first[order], counts[order]
        inverse = rank[inverse]
    return [values, first, inverse, counts]


_Run = Callable[[ir.Node, Sequence[torch.Tensor]], list[torch.Tensor]]
_RUNS: dict[str, _Run] = {}


def _runs(op_type: str) -> Callable[[_Run], _Run]:
    def register(run: _Run) -> _Run:
        _RUNS[op_type] = run
        return run

    return register


@_runs("NonZero")
def _non_zero(node: ir.Node, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [non_zero(inputs[0])]


@_runs("Unique")
def _unique(node: ir.Node, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    axis = node.attributes.get("axis")
    in_order = node.attributes.get_int("sorted", 1)
    return unique(inputs[0], None if axis is None else axis.as_int(), in_order=bool(in_order))


@_runs("ConstantOfShape")
def _of_shape(node: ir.Node, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    sizes = inputs[0].tolist()
    if min(sizes, default=0) < 0:
        raise GraphError(
            f"a size is {min(sizes)}",
            reason="forward takes a number of the batch for a size, or for where a slice begins or ends",
            way_out="count from the start before the number is taken, as in x[: (k % len(x)).item()]",
        )
    value = node.attributes.get("value")
    fill = torch.zeros(1, device="cpu") if value is None else torch.as_tensor(value.as_tensor().numpy(), device="cpu")
    return [fill.reshape(()).to(inputs[0].device).expand(sizes)]


def run_step(node: ir.Node, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the results of a node, which are as long as values say."""
    return _RUNS[node.op_type](node, inputs)
