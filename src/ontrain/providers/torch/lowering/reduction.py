"""Reductions and scans."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir
import torch

from ontrain.graph import orders_ties_as_torch, static_dims
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import Lowering, attributes, lowers, lowers_composite
from ontrain.providers.torch.lowering.shape import constant_ints

__all__: list[str] = []

_EXACT_SQUARES = (torch.float32, torch.float64)
"""Dtypes in which squares are summed as they are: those of narrower ones are summed in single precision."""
_SHORT, _MANY = 4, 1 << 12
"""Axes up to this length are summed slice by slice, of tensors from this size on."""


def _axes(node: ir.Node, rank: int) -> list[int]:
    axes = constant_ints(node.inputs[1]) if len(node.inputs) > 1 else attributes(node).get("axes")
    if not axes:
        return [] if attributes(node).get("noop_with_empty_axes") else list(range(rank))
    return sorted(axis % rank for axis in axes)


def _one_call(**functions: Callable[..., object]) -> None:
    """Lower reductions to one function of torch each, called with `out=`."""

    def lowering_by(function: Callable[..., object]) -> Lowering:
        def lower(e: Emitter, node: ir.Node) -> None:
            x, axes = _operand_and_axes(e, node)
            if not axes:
                return
            keep, out = bool(attributes(node).get("keepdims", 1)), e.out(node.outputs[0])
            if function in _ADDS and _adds_up(e, x, axes):
                _added(e, x, axes, out, mean=function is torch.mean)
                return
            e.call(function, x, axes, keepdim=keep, out=out)

        return lower

    for op_type, function in functions.items():
        lowers(op_type)(lowering_by(function))


def _operand_and_axes(e: Emitter, node: ir.Node) -> tuple[Buf, list[int]]:
    """What is reduced along which axes; none where the operand itself, without axes of one element, is the result."""
    x = e.value(node.inputs[0])
    axes = _axes(node, len(x.shape))
    if axes and any(x.shape[axis] != 1 for axis in axes):
        return x, axes
    e.bind(node.outputs[0], _without_ones(e, x, static_dims(node.outputs[0])))
    return x, []


def _adds_up(e: Emitter, x: Buf, axes: list[int]) -> bool:
    """Whether axes are so short that ATen's kernel, which turns to each result anew, takes many times longer."""
    short = all(2 <= x.shape[axis] <= _SHORT for axis in axes)
    return short and e.device.type == "cpu" and x.dtype in _EXACT_SQUARES and x.meta.numel() >= _MANY


def _added(e: Emitter, x: Buf, axes: list[int], out: Buf, *, mean: bool) -> None:
    """Add slices, those of the first axis first: its lie the farthest apart, each of them in one piece."""
    count = math.prod(x.shape[axis] for axis in axes)
    for number, axis in enumerate(axes):
        axis -= number
        slices = [e.select(x, axis, index) for index in range(x.shape[axis])]
        last = number + 1 == len(axes)
        total = _without_ones(e, out, slices[0].shape) if last else e.new(slices[0].shape, x.dtype)
        e.call(torch.add, slices[0], slices[1], out=total)
        for following in slices[2:]:
            e.run(torch.Tensor.add_, total, following, writes=[total])
        x = total
    if mean:
        e.run(torch.Tensor.mul_, out, 1 / count, writes=[out])


def _without_ones(e: Emitter, buf: Buf, shape: tuple[int, ...]) -> Buf:
    """A view with other axes of one element."""
    return e.reshape(buf, shape)


_ADDS = (torch.sum, torch.mean)
_one_call(ReduceSum=torch.sum, ReduceMean=torch.mean, ReduceLogSumExp=torch.logsumexp)


@lowers("ReduceMax", "ReduceMin")
def reduce_extremum(e: Emitter, node: ir.Node) -> None:
    x, axes = _operand_and_axes(e, node)
    if not axes:
        return
    out = e.out(node.outputs[0])
    if any(x.shape[axis] == 0 for axis in axes):
        e.run(torch.Tensor.fill_, out, _of_nothing(node.op_type, x.dtype), writes=[out])
        return
    function = torch.amax if node.op_type == "ReduceMax" else torch.amin
    e.call(function, x, axes, keepdim=bool(attributes(node).get("keepdims", 1)), out=out)


def _of_nothing(op_type: str, dtype: torch.dtype) -> float:
    """What any number of the type is larger, or smaller, than."""
    if dtype is torch.bool:
        return op_type == "ReduceMin"
    least, most = (-math.inf, math.inf) if dtype.is_floating_point else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return least if op_type == "ReduceMax" else most


@lowers("ReduceL1", "ReduceL2")
def reduce_norm(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    keep = bool(attributes(node).get("keepdims", 1))
    axes, order, out = _axes(node, len(x.shape)), 1 if node.op_type == "ReduceL1" else 2, e.out(node.outputs[0])
    if order == 2 and len(axes) == 1 and x.shape[axes[0]] == 2 and x.dtype in _EXACT_SQUARES:
        real, imaginary = (e.select(x, axes[0], index) for index in (0, 1))
        e.call(torch.hypot, real, imaginary, out=_without_ones(e, out, real.shape))
        return
    if not axes:  # of no axes, which the kernel would take for all
        e.call(torch.abs, x, out=out)
        return
    if axes and max(axes) < len(x.shape) - 1 and x.dtype in _EXACT_SQUARES:
        # Over axes that are not the last, ATen's norm goes element by element.
        magnitudes = e.call(torch.abs if order == 1 else torch.square, x, out=e.new(x.shape, x.dtype))
        e.call(torch.sum, magnitudes, axes, keepdim=keep, out=out)
        if order == 2:
            e.run(torch.Tensor.sqrt_, out, writes=[out])
        return
    e.call(torch.linalg.vector_norm, x, order, axes, keep, out=out)


def _with_axes(**functions: Callable[[torch.Tensor, list[int], bool], torch.Tensor]) -> None:
    """Lower reductions to functions of (tensor, axes, keepdims) that return the result."""

    def lowering_by(function: Callable[[torch.Tensor, list[int], bool], torch.Tensor]) -> Lowering:
        def lower(e: Emitter, node: ir.Node) -> None:
            x = e.value(node.inputs[0])
            axes, keep = _axes(node, len(x.shape)), bool(attributes(node).get("keepdims", 1))
            e.compute(lambda t: function(t, axes, keep), x, outs=[e.out(node.outputs[0])])

        return lower

    for op_type, function in functions.items():
        lowers(op_type)(lowering_by(function))


_with_axes(
    ReduceSumSquare=lambda t, axes, keep: _sum_of_squares(t, axes, keep),
    ReduceLogSum=lambda t, axes, keep: torch.sum(t, axes, keep).log_() if axes else torch.log(t),
    ReduceProd=lambda t, axes, keep: _prod(t, axes, keep),
)


def _sum_of_squares(t: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    if t.dtype in _EXACT_SQUARES:
        squares = torch.square(t)
        return torch.sum(squares, axes, keep) if axes else squares
    norm: torch.Tensor = torch.linalg.vector_norm(t, 2, axes, keep) if axes else torch.abs(t)
    return norm.square_()


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


@lowers_composite("Extremum")
def extremum(e: Emitter, node: ir.Node) -> None:
    a, x, values = attributes(node), e.value(node.inputs[0]), e.out(node.outputs[0])
    largest, extent = a.get("largest", 1), (a.get("axis", 0), bool(a.get("keepdims", 1)))
    if len(node.outputs) < 2 or not e.reads(node.outputs[1]):
        e.call(torch.amax if largest else torch.amin, x, *extent, out=values)
        return
    places = e.out(node.outputs[1])
    e.run(torch.max if largest else torch.min, x, *extent, out=(values, places), writes=[values, places])


@lowers_composite("OrderPlace", "MedianPlace")
def order_place(e: Emitter, node: ir.Node) -> None:
    a, x, out = attributes(node), e.value(node.inputs[0]), e.out(node.outputs[0])
    values, axis = e.new(out.shape, x.dtype), a.get("axis", 0)
    if node.op_type == "MedianPlace":
        e.run(torch.median, x, axis, True, out=(values, out), writes=[values, out])
    else:
        e.run(torch.kthvalue, x, a.get("k", 1), axis, True, out=(values, out), writes=[values, out])


@lowers_composite("RunningExtremum")
def running_extremum(e: Emitter, node: ir.Node) -> None:
    a, x, values = attributes(node), e.value(node.inputs[0]), e.out(node.outputs[0])
    places = e.out(node.outputs[1]) if len(node.outputs) > 1 else e.new(x.shape, torch.int64)
    function = torch.cummax if a.get("largest", 1) else torch.cummin
    e.run(function, x, a.get("axis", 0), out=(values, places), writes=[values, places])


@lowers_composite("ReduceProdGrad")
def reduce_prod_grad(e: Emitter, node: ir.Node) -> None:
    operands = [e.value(v) for v in node.inputs]
    e.compute(_other_products, *operands, attributes(node)["axes"], outs=[e.out(node.outputs[0])], fresh=True)


def _other_products(dy: torch.Tensor, x: torch.Tensor, y: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    """dy times the product of all other elements: by division, if no product is zero; a device is not asked."""
    if x.device.type == "cpu" and not bool((y == 0).any()):
        return (dy * y).div(x)
    rest = [axis for axis in range(x.dim()) if axis not in axes]
    moved = x.permute(*rest, *axes)
    rows = moved.reshape(*(x.shape[axis] for axis in rest), -1)
    before, behind = (_products(rows, -1, exclusive=True, reverse=reverse) for reverse in (False, True))
    order = [*rest, *axes]
    others = (before * behind).reshape(moved.shape).permute(*(order.index(axis) for axis in range(x.dim())))
    return dy * others


@lowers("CumProd")
def cumprod(e: Emitter, node: ir.Node) -> None:
    a, x = attributes(node), e.value(node.inputs[0])
    axis = (constant_ints(node.inputs[1]) or [0])[0]
    out = e.out(node.outputs[0])
    if not a.get("exclusive", 0) and not a.get("reverse", 0):
        e.call(torch.cumprod, x, axis, out=out)
        return
    e.compute(_products, x, axis, bool(a.get("exclusive", 0)), bool(a.get("reverse", 0)), outs=[out], fresh=True)


def _products(x: torch.Tensor, axis: int, exclusive: bool, reverse: bool) -> torch.Tensor:
    """The products up to each element, or before each, or from the other end."""
    if reverse:
        return _products(x.flip(axis), axis, exclusive, False).flip(axis)
    y = x.cumprod(axis)
    if not exclusive or not x.numel():
        return y
    before = torch.ones_like(y)
    before.narrow(axis, 1, x.shape[axis] - 1).copy_(y.narrow(axis, 0, x.shape[axis] - 1))
    return before


@lowers_composite("CumProdGrad")
def cumprod_grad(e: Emitter, node: ir.Node) -> None:
    a, operands = attributes(node), [e.value(v) for v in node.inputs]
    settings = a.get("axis", 0), bool(a.get("reverse", 0))
    e.compute(_cumulative_factors, *operands, *settings, outs=[e.out(node.outputs[0])], fresh=True)


def _cumulative_factors(
    dy: torch.Tensor, x: torch.Tensor, y: torch.Tensor, axis: int, reverse: bool
) -> torch.Tensor:  # fmt: skip
    """The adjoint of x from that of its products y: by division, if no factor is zero; a device is not asked."""
    if reverse:
        return _cumulative_factors(dy.flip(axis), x.flip(axis), y.flip(axis), axis, False).flip(axis)
    if not x.numel():
        return dy.clone()
    if x.device.type == "cpu" and not bool((x == 0).any()):
        terms = dy * y
        # What follows an element, itself included: all of them less those before.
        return terms.flip(axis).cumsum_(axis).flip(axis).div_(x)
    n, before = x.shape[axis], _products(x, axis, exclusive=True, reverse=False)
    share, following, span = dy.clone(), torch.zeros_like(x), 1
    following.narrow(axis, 0, n - 1).copy_(x.narrow(axis, 1, n - 1))
    while span < n:
        near, far = (0, n - span), (span, n - span)
        share.narrow(axis, *near).add_(following.narrow(axis, *near) * share.narrow(axis, *far))
        following.narrow(axis, *near).mul_(following.narrow(axis, *far).clone())
        following.narrow(axis, n - span, span).zero_()
        span *= 2
    return before.mul_(share)


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
    choose = torch.topk if orders_ties_as_torch(node) else _topk
    e.compute(choose, e.value(node.inputs[0]), k, a.get("axis", -1), largest, sort, outs=outs)


def _topk(x: torch.Tensor, k: int, axis: int, largest: bool, sort: bool) -> tuple[torch.Tensor, torch.Tensor]:
    # Of equal elements the first comes first; topk does not keep to that, and costs more where most are wanted.
    if not (sort and 4 * k > x.shape[axis]):
        values, indices = torch.topk(x, k, axis, largest, sorted=True)
        if x.device.type == "cpu" and not _tied(x, values, k, axis):
            return values, indices
    values, indices = torch.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, k), indices.narrow(axis, 0, k)


def _tied(x: torch.Tensor, values: torch.Tensor, k: int, axis: int) -> bool:
    """Whether equal elements are among the first k, or the last of these equals one left out."""
    if k == 0:
        return False
    if bool((values.narrow(axis, 0, k - 1) == values.narrow(axis, 1, k - 1)).any()):
        return True
    last = values.narrow(axis, k - 1, 1)
    return int(torch.count_nonzero(x == last)) != last.numel()  # each is there once; what is no number equals none


@lowers_composite("LogCumSumExp")
def log_cumulative_sum_exp(e: Emitter, node: ir.Node) -> None:
    e.call(torch.logcumsumexp, e.value(node.inputs[0]), attributes(node).get("axis", 0), out=e.out(node.outputs[0]))


@lowers_composite("LogCumSumExpGrad")
def log_cumulative_sum_exp_grad(e: Emitter, node: ir.Node) -> None:
    operands = [e.value(v) for v in node.inputs]
    e.compute(_log_cumulative_adjoint, *operands, attributes(node).get("axis", 0), outs=[e.out(node.outputs[0])],
              fresh=True)  # fmt: skip


def _log_cumulative_adjoint(dy: torch.Tensor, x: torch.Tensor, y: torch.Tensor, axis: int) -> torch.Tensor:
    """The sums that begin at the end, of what is positive and of what is negative in dy, in logarithms as x and y."""
    size = dy.abs().log_()
    parts = []
    for sign in (dy > 0, dy < 0):
        logarithms = torch.where(sign, size, -math.inf).sub_(y).flip(axis).logcumsumexp(axis)
        parts.append(logarithms.flip(axis).add_(x).exp_())
    return parts[0].sub_(parts[1])
