"""Reductions and scans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers
from ontrain.providers.torch.lowering.shape import constant_ints

__all__: list[str] = []

_REDUCE: dict[str, Callable[..., Any]] = {
    "ReduceSum": torch.sum,
    "ReduceMean": torch.mean,
    "ReduceMax": torch.amax,
    "ReduceMin": torch.amin,
    "ReduceLogSumExp": torch.logsumexp,
}


def _axes(node: ir.Node, rank: int) -> list[int]:
    given = constant_ints(node.inputs[1]) if len(node.inputs) > 1 else attributes(node).get("axes")
    if not given:
        return [] if attributes(node).get("noop_with_empty_axes") else list(range(rank))
    return sorted(axis % rank for axis in given)


@lowers(*_REDUCE)
def reduce(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    axes = _axes(node, len(x.shape))
    if not axes:
        e.bind(node.outputs[0], x)
        return
    keep = bool(attributes(node).get("keepdims", 1))
    e.call(_REDUCE[node.op_type], x, axes, keepdim=keep, out=e.out(node.outputs[0]))


@lowers("ReduceL1", "ReduceL2")
def reduce_norm(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    keep = bool(attributes(node).get("keepdims", 1))
    order = 1 if node.op_type == "ReduceL1" else 2
    out = e.out(node.outputs[0])
    e.call(torch.linalg.vector_norm, x, order, _axes(node, len(x.shape)), keep, out=out)


@lowers("ReduceSumSquare", "ReduceLogSum", "ReduceProd")
def reduce_by_function(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    axes, keep = _axes(node, len(x.shape)), bool(attributes(node).get("keepdims", 1))
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "ReduceSumSquare": lambda t: torch.linalg.vector_norm(t, 2, axes, keep).square_(),
        "ReduceLogSum": lambda t: torch.sum(t, axes, keep).log_(),
        "ReduceProd": lambda t: _prod(t, axes, keep),
    }
    e.compute(functions[node.op_type], x, outs=[e.out(node.outputs[0])])


def _prod(t: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    for axis in reversed(axes):
        t = torch.prod(t, axis, keep)
    return t


@lowers("ArgMax", "ArgMin")
def arg(e: Emitter, node: ir.Node) -> None:
    a = attributes(node)
    fn = torch.argmax if node.op_type == "ArgMax" else torch.argmin
    x, axis, keep, out = e.value(node.inputs[0]), a.get("axis", 0), bool(a.get("keepdims", 1)), e.out(node.outputs[0])
    if not a.get("select_last_index"):
        e.call(fn, x, axis, keep, out=out)
        return
    last = x.shape[axis] - 1
    e.compute(lambda t: last - fn(t.flip(axis), axis, keep), x, outs=[out])


@lowers("CumSum")
def cumsum(e: Emitter, node: ir.Node) -> None:
    a = attributes(node)
    x = e.value(node.inputs[0])
    axis = (constant_ints(node.inputs[1]) or [0])[0]
    out = e.out(node.outputs[0])
    reverse, exclusive = a.get("reverse", 0), a.get("exclusive", 0)
    if not reverse and not exclusive:
        e.call(torch.cumsum, x, axis, out=out)
        return

    def run(t: torch.Tensor) -> torch.Tensor:
        t = t.flip(axis) if reverse else t
        total = t.cumsum(axis)
        total = total - t if exclusive else total
        return total.flip(axis) if reverse else total

    e.compute(run, x, outs=[out])


@lowers("TopK")
def topk(e: Emitter, node: ir.Node) -> None:
    a = attributes(node)
    k = (constant_ints(node.inputs[1]) or [1])[0]
    outs: list[Buf | None] = [e.out(v) for v in node.outputs]
    largest, sort = bool(a.get("largest", 1)), bool(a.get("sorted", 1))
    e.compute(_topk, e.value(node.inputs[0]), k, a.get("axis", -1), largest, sort, outs=outs)


def _topk(x: torch.Tensor, k: int, axis: int, largest: bool, sort: bool) -> tuple[torch.Tensor, torch.Tensor]:
    if k == x.shape[axis] and sort:
        # Of equal elements the first comes first; a whole topk does not keep to that, and costs more.
        values, indices = torch.sort(x, dim=axis, descending=largest, stable=True)
        return values, indices
    found = torch.topk(x, k, axis, largest, sort)
    return found.values, found.indices
