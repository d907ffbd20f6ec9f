"""Operators that only rearrange: views where strides allow, else one copy."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir
import torch

from ontrain.graph import static_dims
from ontrain.operators import slice_places
from ontrain.providers.torch.buffers import Buf, order_of, torch_dtype
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers, lowers_composite

__all__ = ["constant_ints", "surrounded"]


Repeats = Literal["reflect", "edge", "wrap"]
"""How a Pad without a value fills: ONNX's names, which are numpy's."""


def constant_ints(value: ir.Value | None) -> list[int] | None:
    """Return a constant int vector (axes, pads, starts …); None if the input is absent."""
    if value is None:
        return None
    if value.const_value is None:
        raise ValueError(f"{value.name} must be constant: a plan has fixed sizes")
    return [int(i) for i in value.const_value.numpy().reshape(-1)]


@lowers("Reshape", "Squeeze", "Unsqueeze", "Flatten")
def reshape(e: Emitter, node: ir.Node) -> None:
    e.bind(node.outputs[0], e.reshape(e.raw(node.inputs[0]), static_dims(node.outputs[0])))


@lowers("Identity")
@lowers_composite("Detach", "FromStart", "Inspect", "Through")
def identity(e: Emitter, node: ir.Node) -> None:
    e.bind(node.outputs[0], e.raw(node.inputs[0]))


@lowers("Transpose")
def transpose(e: Emitter, node: ir.Node) -> None:
    x = e.raw(node.inputs[0])
    perm = attributes(node).get("perm") or list(range(len(x.shape)))[::-1]
    e.bind(node.outputs[0], e.permute(x, perm))


@lowers("Expand")
def expand(e: Emitter, node: ir.Node) -> None:
    e.bind(node.outputs[0], e.view(e.value(node.inputs[0]), lambda t: t.expand(static_dims(node.outputs[0]))))


@lowers("Slice")
def slice_(e: Emitter, node: ir.Node) -> None:
    inputs = [*node.inputs, None, None][:5]
    x = e.value(inputs[0])
    starts, ends = constant_ints(inputs[1]) or [], constant_ints(inputs[2]) or []
    axes = constant_ints(inputs[3]) or list(range(len(starts)))
    steps = constant_ints(inputs[4]) or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        x = _slice_axis(e, x, start, end, axis % len(x.shape), step)
    e.bind(node.outputs[0], x)


def _slice_axis(e: Emitter, x: Buf, start: int, end: int, axis: int, step: int) -> Buf:
    picked = slice_places(start, end, step, x.shape[axis])
    if step > 0:
        return e.view(x, lambda t: t[(slice(None),) * axis + (slice(picked.start, picked.stop, step),)])
    index = e.constant(torch.tensor(list(picked), dtype=torch.int64, device=e.device))
    shape = [*x.shape[:axis], len(picked), *x.shape[axis + 1 :]]
    return e.call(torch.index_select, x, axis, index, out=e.new(shape, x.dtype))


@lowers("Split")
def split(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    axis = attributes(node).get("axis", 0) % len(x.shape)
    start = 0
    for value in node.outputs:
        size = static_dims(value)[axis]
        e.bind(value, e.narrow(x, axis, start, size))
        start += size


@lowers("Concat")
def concat(e: Emitter, node: ir.Node) -> None:
    inputs = [e.value(v) for v in node.inputs]
    e.call(torch.cat, inputs, attributes(node)["axis"], out=e.out(node.outputs[0], *inputs))


@lowers("Tile")
def tile(e: Emitter, node: ir.Node) -> None:
    repeats = constant_ints(node.inputs[1])
    e.compute(torch.Tensor.repeat, e.value(node.inputs[0]), repeats, outs=[e.out(node.outputs[0])])


@lowers("Pad")
def pad(e: Emitter, node: ir.Node) -> None:
    inputs = [*node.inputs, None, None][:4]
    x = e.value(inputs[0])
    rank = len(x.shape)
    axes = constant_ints(inputs[3])
    axes = list(range(rank)) if axes is None else [a % rank for a in axes]
    lengths = constant_ints(inputs[1]) or []
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[axis], after[axis] = lengths[i], lengths[i + len(axes)]
    mode = attributes(node).get("mode", "constant")
    if mode in _NATIVE and (amounts := _by_native(x.shape, x.dtype, before, after)) is not None:
        if len(amounts) == 2:
            kernel = torch.ops.aten.reflection_pad1d if mode == "reflect" else torch.ops.aten.replication_pad1d
            e.call(kernel.out, x, amounts, out=e.out(node.outputs[0]))
            return
        pad_by = functools.partial(torch.nn.functional.pad, pad=amounts, mode=_NATIVE[mode])
        e.compute(pad_by, x, outs=[e.out(node.outputs[0], x)], fresh=True)
        return
    if mode != "constant":
        e.bind(node.outputs[0], _pad_by_index(e, x, before, after, mode))
        return
    lengths = [n + min(0, b) + min(0, a) for n, b, a in zip(x.shape, before, after, strict=True)]
    out = e.out(node.outputs[0], x)
    fill = e.reshape(e.value(inputs[2]), ()) if inputs[2] is not None else 0
    for axis in range(rank):  # a negative pad crops: what lies outside of the result is left out of the copy
        x = e.narrow(x, axis, max(0, -before[axis]), lengths[axis])
    e.copy(x, surrounded(e, out, [max(0, b) for b in before], lengths, fill))


_SMALL = 1 << 16
"""Bytes up to which one call that fills all takes less time than a call for each border."""


def surrounded(e: Emitter, out: Buf, before: Sequence[int], lengths: Sequence[int], fill: Buf | float) -> Buf:
    """Fill what surrounds a part of a buffer, and return the part.

    Args:
        e: where the calls are emitted.
        out: the whole.
        before: where the part begins along each axis.
        lengths: of the part along each axis.
        fill: the number.
    """
    small, part = out.meta.nbytes <= _SMALL, out
    if small:
        e.run(torch.Tensor.fill_, out, fill, writes=[out])
    for axis, (start, length) in enumerate(zip(before, lengths, strict=True)):
        for first, count in ((0, start), (start + length, part.shape[axis] - start - length)):
            if count and not small:
                border = e.narrow(part, axis, first, count)
                e.run(torch.Tensor.fill_, border, fill, writes=[border])
        part = e.narrow(part, axis, start, length)
    return part


_NATIVE = {"reflect": "reflect", "edge": "replicate"}
"""Modes that ATen has kernels for, and their names there."""


def _by_native(
    shape: Sequence[int], dtype: torch.dtype, before: Sequence[int], after: Sequence[int]
) -> list[int] | None:
    """What torch's `pad` is told: it pads all the axes but one or two that lead. None if its kernels do not take it."""
    rank = len(shape)
    padded = [axis for axis in range(rank) if before[axis] or after[axis]]
    count = next((n for n in (rank - 2, rank - 1) if 1 <= n <= 3 and padded and min(padded) >= rank - n), None)
    inside = all(0 <= n < size for ends in (before, after) for n, size in zip(ends, shape, strict=True))
    if count is None or not inside or dtype not in (torch.float32, torch.float64) or 0 in shape:
        return None
    return [n for axis in reversed(range(rank - count, rank)) for n in (before[axis], after[axis])]


def _borders(node: ir.Node) -> list[int] | None:
    """What ATen's kernel is told of a node's pads; None if it does not take them."""
    a = attributes(node)
    rank = len(a["shape"])
    if a["mode"] not in _NATIVE or node.inputs[0] is None:
        return None
    return _by_native(a["shape"], torch_dtype(node.inputs[0].dtype), a["pads"][:rank], a["pads"][rank:])


def _adjoins(node: ir.Node) -> bool:
    """Whether ATen has the gradient of such a border. A node without inputs stands for the operator as such."""
    return not node.inputs or _borders(node) is not None


@lowers_composite("PadGrad", when=_adjoins)
def pad_grad(e: Emitter, node: ir.Node) -> None:
    dy, amounts = e.value(node.inputs[0]), _borders(node)
    assert amounts is not None
    out = e.out(node.outputs[0], dy)
    name = {"reflect": "reflection_pad", "edge": "replication_pad"}[attributes(node)["mode"]]
    kernel = getattr(torch.ops.aten, f"{name}{len(amounts) // 2}d_backward").grad_input
    # The kernel asks for the images only to know their shape, which the result has, too.
    e.run(kernel, e.ordered(dy, order_of(out.meta)), out, amounts, grad_input=out, writes=[out])


def _pad_by_index(e: Emitter, x: Buf, before: list[int], after: list[int], mode: Repeats) -> Buf:
    """Reflect, edge or wrap: each place of the result names the place of x that it repeats."""
    for axis, (lead, trail) in enumerate(zip(before, after, strict=True)):
        if lead or trail:
            places = np.arange(x.shape[axis])[max(0, -lead) : x.shape[axis] + min(0, trail)]
            places = np.pad(places, (max(0, lead), max(0, trail)), mode)
            index = e.constant(torch.tensor(places, dtype=torch.int64, device=e.device))
            shape = [*x.shape[:axis], len(places), *x.shape[axis + 1 :]]
            x = e.call(torch.index_select, x, axis, index, out=e.new(shape, x.dtype))
    return x


@lowers("Trilu")
def trilu(e: Emitter, node: ir.Node) -> None:
    (k,) = (constant_ints(node.inputs[1]) if len(node.inputs) > 1 else None) or (0,)
    fn = torch.triu if attributes(node).get("upper", 1) else torch.tril
    e.call(fn, e.value(node.inputs[0]), k, out=e.out(node.outputs[0]))


@lowers("ConstantOfShape")
def constant_of_shape(e: Emitter, node: ir.Node) -> None:
    tensor = attributes(node).get("value")
    value = tensor.numpy().reshape(()).item() if tensor is not None else 0.0
    out = e.out(node.outputs[0])
    e.run(torch.Tensor.fill_, out, value, writes=[out])


def _number(value: ir.Value | None) -> float:
    if value is None or value.const_value is None:
        raise ValueError(f"{value and value.name} must be constant: a plan has fixed sizes")
    number: float = value.const_value.numpy().reshape(()).item()
    return number


@lowers("Range")
def range_(e: Emitter, node: ir.Node) -> None:
    start, end, step = (_number(v) for v in node.inputs)
    dtype = torch_dtype(node.outputs[0].dtype)
    e.bind(node.outputs[0], e.constant(torch.arange(start, end, step, dtype=dtype, device=e.device)))


@lowers("DepthToSpace", "SpaceToDepth")
def depth_space(e: Emitter, node: ir.Node) -> None:
    a = attributes(node)
    block = a["blocksize"]
    x = e.value(node.inputs[0])
    n, c, h, w = x.shape
    if node.op_type == "SpaceToDepth":
        split = e.reshape(x, (n, c, h // block, block, w // block, block))
        order = (0, 1, 3, 5, 2, 4) if a.get("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
        moved = e.permute(split, order)
    elif a.get("mode", "DCR") == "CRD":
        split = e.reshape(x, (n, c // block**2, block, block, h, w))
        moved = e.view(split, lambda t: t.permute(0, 1, 4, 2, 5, 3))
    else:
        split = e.reshape(x, (n, block, block, c // block**2, h, w))
        moved = e.view(split, lambda t: t.permute(0, 3, 4, 1, 5, 2))
    e.bind(node.outputs[0], e.reshape(moved, static_dims(node.outputs[0])))


@lowers("ReverseSequence")
def reverse_sequence(e: Emitter, node: ir.Node) -> None:
    a = attributes(node)
    time, batch = a.get("time_axis", 0), a.get("batch_axis", 1)

    def run(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        moved = x.movedim((time, batch), (0, 1))
        steps = torch.arange(moved.shape[0], device=x.device)[:, None]
        source = torch.where(steps < lengths, lengths - 1 - steps, steps)
        picked = moved[source, torch.arange(moved.shape[1], device=x.device)]
        return picked.movedim((0, 1), (time, batch))

    e.compute(run, *(e.value(v) for v in node.inputs), outs=[e.out(node.outputs[0])])
