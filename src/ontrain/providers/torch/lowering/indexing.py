"""Gathers, scatters and embeddings."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import onnx_ir as ir
import torch

from ontrain.graph import static_dims
from ontrain.operators import is_from_start
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.instructions import Function
from ontrain.providers.torch.lowering.registry import attributes, lowers, lowers_composite

__all__: list[str] = []


@lowers("Gather")
def gather(e: Emitter, node: ir.Node) -> None:
    data, indices = node.inputs
    assert indices is not None
    x = e.value(data)
    axis = attributes(node).get("axis", 0) % len(x.shape)
    const = indices.const_value
    if const is not None and const.size == 1:
        at = int(const.numpy().reshape(()))
        at += x.shape[axis] if at < 0 else 0
        picked = e.view(x, lambda t: t.narrow(axis, at, 1))
        e.bind(node.outputs[0], e.reshape(picked, static_dims(node.outputs[0])))
        return
    ids = e.value(indices)
    if is_from_start(indices):
        _select(e, x, ids, axis, node.outputs[0])
    elif const is None and e.device.type == "cpu":
        _select(e, x, ids, axis, node.outputs[0], _from_the_end(torch.index_select, x.shape[axis]))
    else:
        _select(e, x, _positive(e, ids, x.shape[axis], const is not None), axis, node.outputs[0])


@lowers_composite("Embedding")
def embedding(e: Emitter, node: ir.Node) -> None:
    weight, ids = (e.value(v) for v in node.inputs)
    _select(e, weight, ids, 0, node.outputs[0])


def _select(
    e: Emitter, x: Buf, indices: Buf, axis: int, result: ir.Value, function: Function = torch.index_select
) -> None:
    flat = e.reshape(indices, (-1,))
    shape = (*x.shape[:axis], flat.shape[0], *x.shape[axis + 1 :])
    out = e.out(result)
    target = e.view(out, lambda t: t.view(shape))
    e.call(function, x, axis, flat, out=target)


def _positive(e: Emitter, indices: Buf, size: int, constant: bool) -> Buf:
    """ONNX lets indices count from the end; ATen's index_select does not. One that is out of range stays so."""
    tensor = indices.storage.tensor
    if constant and tensor is not None:
        return e.constant(torch.where(tensor < 0, tensor + size, tensor)) if tensor.numel() else indices
    negative = e.call(torch.lt, indices, 0, out=e.new(indices.shape, torch.bool))
    return e.call(torch.add, indices, negative, alpha=size, out=e.new(indices.shape, indices.dtype))


def _from_the_end(function: Callable[..., object], size: int) -> Function:
    """A function of (tensor, axis, index, …) for indices that may count from the end of an axis.

    Looking for one that does costs a fraction of counting all anew. No device is waited for: see `_positive`.
    """
    return functools.partial(_counted_from_start, function, size)


def _counted_from_start(
    function: Callable[..., object], size: int, x: torch.Tensor, axis: int, index: torch.Tensor,
    *rest: object, **out: torch.Tensor,
) -> None:  # fmt: skip
    if index.numel() and index.min().item() < 0:
        index = torch.where(index < 0, index + size, index)
    function(x, axis, index, *rest, **out)


def _along_axis(
    e: Emitter, function: Callable[..., object], indices: ir.Value | None, index: Buf, size: int
) -> tuple[Function, Buf]:  # fmt: skip
    """A function of (tensor, axis, index, …), and the index to call it with.

    ATen's own functions refuse negative indices.
    """
    assert indices is not None
    if is_from_start(indices):
        return function, index
    if e.device.type == "cpu":
        return _from_the_end(function, size), index
    return function, _positive(e, index, size, False)


@lowers_composite("EmbeddingGrad", adds=True)
def embedding_grad(e: Emitter, node: ir.Node) -> None:
    dy, ids = (e.value(v) for v in node.inputs)
    a = attributes(node)
    out = e.out(node.outputs[0])
    width = math.prod(out.shape[1:])
    rows = e.view(out, lambda t: t.view(out.shape[0], width))
    source, index = e.reshape(dy, (ids.meta.numel(), width)), e.reshape(ids, (-1,))
    before = e.added_to(node.outputs[0])
    if e.device.type != "cpu":
        operands = source, index, out.shape[0], a.get("padding_idx", -1)
        if before is None:
            e.compute(_sorted_sums, *operands, outs=[rows], fresh=True)
        else:
            e.run(_add_sorted_sums, rows, e.view(before, lambda t: t.view(rows.shape)), *operands, writes=[rows])
        return
    pad = e.view(rows, lambda t: t[a["padding_idx"]]) if a.get("padding_idx", -1) >= 0 else None
    if before is None:
        e.run(torch.Tensor.zero_, out, writes=[out])
    elif before is not out:
        e.run(torch.Tensor.copy_, out, before, writes=[out])
    there = e.new((width,), out.dtype) if pad is not None and before is not None else None
    if pad is not None and there is not None:
        e.run(torch.Tensor.copy_, there, pad, writes=[there])
    e.run(torch.Tensor.index_add_, rows, 0, index, source, writes=[rows])
    if pad is not None and there is not None:
        e.run(torch.Tensor.copy_, pad, there, writes=[pad])
    elif pad is not None:
        e.run(torch.Tensor.zero_, pad, writes=[pad])


def _sorted_sums(source: torch.Tensor, index: torch.Tensor, count: int, padding: int) -> torch.Tensor:
    """Rows summed by index [count, width]: sorted first, so that sums repeat to the bit and no row is waited for."""
    gradient: torch.Tensor = torch.ops.aten.embedding_dense_backward(source, index, count, padding, False)
    return gradient


def _add_sorted_sums(
    rows: torch.Tensor, before: torch.Tensor, source: torch.Tensor, index: torch.Tensor, count: int, padding: int
) -> None:
    torch.add(before, _sorted_sums(source, index, count, padding), out=rows)


def _line(e: Emitter, indices: Buf, x: Buf, axis: int) -> Buf | None:
    """Indices along an axis as a vector, where they are repeated for all of x's other axes: then slices move whole."""
    for place, (count, size, stride) in enumerate(zip(indices.shape, x.shape, indices.meta.stride(), strict=True)):
        if place != axis and (count != size or (stride and count > 1)):
            return None
    if e.device.type != "cpu" or 0 in indices.shape:
        return None
    return e.view(indices, lambda t: t.movedim(axis, 0).flatten(1)[:, 0] if t.dim() > 1 else t)


@lowers("GatherElements")
def gather_elements(e: Emitter, node: ir.Node) -> None:
    x, indices = (e.value(v) for v in node.inputs)
    axis = attributes(node).get("axis", 0) % len(x.shape)
    line = _line(e, indices, x, axis)
    if line is not None:
        taken, line = _along_axis(e, torch.index_select, node.inputs[1], line, x.shape[axis])
        _select(e, x, line, axis, node.outputs[0], taken)
        return
    gathered, index = _along_axis(e, torch.gather, node.inputs[1], indices, x.shape[axis])
    e.call(gathered, x, axis, index, out=e.out(node.outputs[0]))


@lowers("ScatterElements")
def scatter_elements(e: Emitter, node: ir.Node) -> None:
    x, indices, updates = (e.value(v) for v in node.inputs)
    a = attributes(node)
    axis = a.get("axis", 0) % len(x.shape)
    out = e.out(node.outputs[0])
    e.run(torch.Tensor.copy_, out, x, writes=[out])
    reduce = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}.get(a.get("reduction", "none"))
    line = _line(e, indices, x, axis) if reduce == "sum" else None
    if line is not None:
        added, line = _along_axis(e, torch.Tensor.index_add_, node.inputs[1], line, x.shape[axis])
        e.run(added, out, axis, line, updates, writes=[out])
        return
    write = {None: torch.Tensor.scatter_, "sum": torch.Tensor.scatter_add_}.get(reduce, torch.Tensor.scatter_reduce_)
    written, index = _along_axis(e, write, node.inputs[1], indices, x.shape[axis])
    e.run(written, out, axis, index, updates, *([] if reduce in (None, "sum") else [reduce]), writes=[out])


@lowers("GatherND")
def gather_nd(e: Emitter, node: ir.Node) -> None:
    x, indices = (e.value(v) for v in node.inputs)
    e.compute(_gather_nd, x, indices, attributes(node).get("batch_dims", 0), outs=[e.out(node.outputs[0])])


def _gather_nd(x: torch.Tensor, indices: torch.Tensor, batch: int) -> torch.Tensor:
    index = tuple(indices.unbind(-1))
    lead = []
    for axis in range(batch):
        shape = [1] * (indices.dim() - 1)
        shape[axis] = x.shape[axis]
        lead.append(torch.arange(x.shape[axis], device=x.device).view(shape).expand(indices.shape[:-1]))
    return x[(*lead, *index)]


@lowers("ScatterND")
def scatter_nd(e: Emitter, node: ir.Node) -> None:
    x, indices, updates = (e.value(v) for v in node.inputs)
    reduction = attributes(node).get("reduction", "none")
    out = e.out(node.outputs[0])
    e.run(torch.Tensor.copy_, out, x, writes=[out])
    if reduction in ("none", "add"):
        e.run(_scatter_nd, out, indices, updates, reduction == "add", writes=[out])
    else:
        how = {"mul": "prod", "max": "amax", "min": "amin"}[reduction]
        e.run(_reduce_nd, out, indices, updates, how, writes=[out])


def _scatter_nd(out: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, add: bool) -> None:
    out.index_put_(tuple(indices.unbind(-1)), updates, accumulate=add)


def _reduce_nd(out: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, how: str) -> None:
    """Rows of `out` combined with their updates; the index tuples become numbers of rows."""
    depth = indices.shape[-1]
    rows = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=out.device)
    for place, size in zip(indices.unbind(-1), out.shape[:depth], strict=True):
        # A device is not waited for: there a wrong index is what ONNX leaves open.
        if out.device.type == "cpu" and bool(((place < -size) | (place >= size)).any()):
            raise IndexError(f"an index lies outside of a dimension of size {size}")
        rows = rows * size + place.remainder(size)
    flat = out.view(int(out.shape[:depth].numel()), -1)
    flat.index_reduce_(0, rows.reshape(-1), updates.reshape(rows.numel(), -1), how)


@lowers("OneHot")
def one_hot(e: Emitter, node: ir.Node) -> None:
    indices, _, values = node.inputs
    axis = attributes(node).get("axis", -1)
    depth = static_dims(node.outputs[0])[axis]

    def run(ids: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        # What lies outside of [-depth, depth) is hot nowhere; so the places are compared, not looked up.
        places = torch.where(ids < 0, ids + depth, ids)
        hot = (places.unsqueeze(-1) == torch.arange(depth, device=ids.device)).movedim(-1, axis)
        return torch.where(hot, values[1], values[0])

    e.compute(run, e.value(indices), e.value(values), outs=[e.out(node.outputs[0])])
