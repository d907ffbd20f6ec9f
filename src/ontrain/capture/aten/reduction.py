"""Sums, means, extremes and the like along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture.aten.precision import in_single
from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder
from ontrain.operators import Value

__all__ = ["length"]


def _axes(dim: int | Sequence[int] | None) -> list[int] | None:
    """The axes as a list; None means all of them."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return None
    return [dim] if isinstance(dim, int) else [int(d) for d in dim]


def _reduce(op: AtenBuilder, op_type: str, x: Value, dim: int | Sequence[int] | None, keepdim: bool) -> Value:
    if not op.input_shape(0):
        return x
    axes = _axes(dim)
    operands = (x,) if axes is None else (x, axes)
    return op.call("", op_type, operands, {"keepdims": int(keepdim)})


def _plain(op_type: str) -> Callable[..., Any]:
    def translate(
        op: AtenBuilder, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False,
        *, dtype: torch.dtype | None = None,
    ) -> Value:  # fmt: skip
        return _reduce(op, op_type, op.cast(x, op.dtype), dim, keepdim)

    return translate


_NARROW = (ir.DataType.BOOL, ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.INT16)
"""What ONNX adds up and multiplies none of."""


def _total(op_type: str) -> Callable[..., Any]:
    def translate(
        op: AtenBuilder, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False,
        *, dtype: torch.dtype | None = None,
    ) -> Value:  # fmt: skip
        x = op.cast(x, op.dtype)
        wide = op.cast(x, ir.DataType.INT64) if op.dtype in _NARROW else x
        return op.cast(_reduce(op, op_type, wide, dim, keepdim), op.dtype)  # the low bits of what overflows

    return translate


for _names, _op_type in (
    (("mean.default", "mean.dim"), "ReduceMean"),
    (("amax", "max.default"), "ReduceMax"),
    (("amin", "min.default"), "ReduceMin"),
):
    aten(*_names)(_plain(_op_type))
aten("sum.default", "sum.dim_IntList")(_total("ReduceSum"))
aten("prod.default", "prod.dim_int")(_total("ReduceProd"))


def _truth(op_type: str) -> Callable[..., Any]:
    def translate(op: AtenBuilder, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Value:
        counted = op.Cast(op.cast(x, ir.DataType.BOOL), to=ir.DataType.INT32)
        reduced = _reduce(op, op_type, counted, dim, keepdim)
        return op.cast(op.Greater(reduced, 0), op.dtype)  # the greatest of none is the least number there is

    return translate


aten("any")(_truth("ReduceMax"))
aten("all")(_truth("ReduceMin"))
aten("_is_all_true")(_truth("ReduceMin"))
aten("_is_any_true")(_truth("ReduceMax"))


@aten("count_nonzero")
def count_nonzero(op: AtenBuilder, x: Value, dim: int | Sequence[int] | None = None) -> Value:
    return _reduce(op, "ReduceSum", op.Cast(op.cast(x, ir.DataType.BOOL), to=ir.DataType.INT64), dim, False)


@aten("argmax", "argmin")
def argmax(op: AtenBuilder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    make = op.ArgMax if "argmax" in str(op.node.target) else op.ArgMin
    if not op.input_shape(0):
        return op.const(np.array(0, np.int64))
    if dim is None:
        return op.Squeeze(make(op.Reshape(x, [-1]), axis=0, keepdims=0), None)
    return make(x, axis=dim, keepdims=int(keepdim))


@aten("max.dim", "min.dim")
def max_dim(op: AtenBuilder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, ...]:
    if not op.input_shape(0):
        return x, op.const(np.array(0, np.int64))
    largest = "aten.max" in str(op.node.target)
    return op.composite(
        "Extremum", x, axis=dim % len(op.input_shape(0)), keepdims=int(keepdim), largest=int(largest), outputs=2
    )


def _count(op: AtenBuilder, axes: list[int] | None, dtype: ir.DataType) -> Value:
    """The number of elements that are reduced, as a scalar: a number where it is known."""
    shape = op.input_shape(0)
    sizes = [shape[axis] for axis in (axes if axes is not None else range(len(shape)))]
    count = op.count(sizes)
    return op.cast(float(count) if isinstance(count, int) else count, dtype)


def _variance(op: AtenBuilder, x: Value, dim: int | Sequence[int] | None, correction: float, keepdim: bool) -> Value:
    axes = _axes(dim)
    operands = () if axes is None else (axes,)
    centred = x - op.ReduceMean(x, *operands, keepdims=1)
    if not correction:
        return op.ReduceMean(centred * centred, *operands, keepdims=int(keepdim))
    n = _count(op, axes, x.dtype)
    total = op.ReduceSum(centred * centred, *operands, keepdims=int(keepdim))
    return total / op.Max(n - op.cast(correction, x.dtype), op.cast(0, x.dtype))


def _spread(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The translations of var, std, var_mean or std_mean: by a correction, and by flags."""

    def results(op: AtenBuilder, x: Value, dim: Any, correction: float, keepdim: bool) -> Value | tuple[Value, Value]:
        variance = _variance(op, x, dim, correction, keepdim)
        spread = _root(op, variance) if name.startswith("std") else variance
        return (spread, _reduce(op, "ReduceMean", x, dim, keepdim)) if name.endswith("mean") else spread

    def corrected(
        op: AtenBuilder, x: Value, dim: int | Sequence[int] | None = None,
        *, correction: float | None = None, keepdim: bool = False,
    ) -> Value | tuple[Value, Value]:  # fmt: skip
        return results(op, x, dim, 1 if correction is None else correction, keepdim)

    def unbiased(op: AtenBuilder, x: Value, *rest: Any) -> Value | tuple[Value, Value]:
        # var(x, unbiased) or var(x, dim, unbiased, keepdim)
        dim, flags = (None, rest) if not rest or isinstance(rest[0], bool) else (rest[0], rest[1:])
        return results(op, x, dim, float(flags[0]) if flags else 1.0, bool(flags[1]) if len(flags) > 1 else False)

    return corrected, unbiased


def _root(op: AtenBuilder, variance: Value) -> Value:
    """The square root, through which nothing flows back where there is no variance."""
    none, zero = op.Equal(variance, op.cast(0, variance.dtype)), op.cast(0, variance.dtype)
    return op.Where(none, zero, op.Sqrt(op.Where(none, op.cast(1, variance.dtype), variance)))


for _name in ("var", "std", "var_mean", "std_mean"):
    _corrected, _unbiased = _spread(_name)
    aten(f"{_name}.correction")(in_single(_corrected))
    aten(f"{_name}.default", f"{_name}.dim")(in_single(_unbiased))


@aten("cumsum")
def cumsum(op: AtenBuilder, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    x = op.cast(x, op.dtype)
    if not op.input_shape(0):
        return x
    wide = op.cast(x, ir.DataType.INT64) if op.dtype in _NARROW else x
    return op.cast(op.CumSum(wide, op.const(np.array(dim, np.int64))), op.dtype)


@aten("logsumexp")
def logsumexp(op: AtenBuilder, x: Value, dim: Sequence[int], keepdim: bool = False) -> Value:
    axes = _axes(dim)
    x = op.cast(x, op.dtype)
    if not op.input_shape(0):
        return x
    # The largest term is taken out against overflow; detached, it leaves the gradient what it is.
    top = op.composite("Detach", op.ReduceMax(x, axes, keepdims=1))
    infinite = op.IsInf(top)
    top = op.Where(infinite, op.cast(0, op.dtype), top)
    total = op.Log(op.ReduceSum(op.Exp(x - top), axes, keepdims=1)) + top
    return total if keepdim else op.Squeeze(total, axes)


@aten("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar", "norm.ScalarOpt_dim_dtype")
def vector_norm(
    op: AtenBuilder, x: Value, ord: float | None = 2, dim: Sequence[int] | None = None, keepdim: bool = False,
    *, dtype: torch.dtype | None = None,
) -> Value:  # fmt: skip
    return length(op, op.cast(x, op.dtype), 2 if ord is None else ord, dim, keepdim)


def length(op: AtenBuilder, x: Value, ord: float, dim: Sequence[int] | None, keepdim: bool) -> Value:
    """The p-norm of x along axes, whose gradient at zero is zero, as torch's."""
    if x.shape is not None and not len(x.shape):
        return op.Abs(x) if ord else op.Cast(op.Cast(x, to=ir.DataType.BOOL), to=x.dtype)
    axes = _axes(dim)
    operands = (x,) if axes is None else (x, axes)
    if ord == 2:
        return op.ReduceL2(*operands, keepdims=int(keepdim))
    if ord == 1:
        return op.ReduceL1(*operands, keepdims=int(keepdim))
    zero = op.cast(0, x.dtype)
    if ord == 0:
        counted = op.Cast(op.Not(op.Equal(x, zero)), to=x.dtype)
        return op.ReduceSum(counted, *operands[1:], keepdims=int(keepdim))
    if ord in (float("inf"), float("-inf")):
        return (op.ReduceMax if ord > 0 else op.ReduceMin)(op.Abs(x), *operands[1:], keepdims=int(keepdim))
    return op.cast(_power_norm(op, x, ord, operands[1:], keepdim), x.dtype)


@in_single
def _power_norm(op: AtenBuilder, x: Value, ord: float, axes: Sequence[Sequence[int]], keepdim: bool) -> Value:
    """The root of a sum of powers, of whatever order."""
    zero, one, size = op.cast(0, x.dtype), op.cast(1, x.dtype), op.Abs(x)
    power = op.cast(float(ord), x.dtype)
    nothing = op.Equal(size, zero)
    terms = op.Where(nothing, zero, op.Pow(op.Where(nothing, one, size), power))
    total = op.ReduceSum(terms, *axes, keepdims=int(keepdim))
    empty = op.Equal(total, zero)
    return op.Where(empty, zero, op.Pow(op.Where(empty, one, total), op.cast(1 / float(ord), x.dtype)))


_RENORM_EPS = 1e-7
"""What torch adds to a norm that is too great before it divides by it."""


def shortened(op: AtenBuilder, x: Value, ord: float, dim: Sequence[int], longest: float) -> Value:
    """x, its vectors along axes scaled down to a norm where they are longer."""
    norms, most = length(op, x, ord, dim, True), op.cast(longest, x.dtype)
    factor = most / (norms + op.cast(_RENORM_EPS, x.dtype))
    return x * op.Where(op.Greater(norms, most), factor, op.cast(1, x.dtype))


@aten("renorm")
def renorm(op: AtenBuilder, x: Value, p: float, dim: int, maxnorm: float) -> Value:
    rank = len(op.input_shape(0))
    return shortened(op, x, p, [axis for axis in range(rank) if axis != dim % rank], maxnorm)


@aten("dist")
def dist(op: AtenBuilder, a: Value, b: Value, p: float = 2) -> Value:
    return length(op, op.cast(a, op.dtype) - op.cast(b, op.dtype), p, None, False)


_WITHOUT_PRODUCTS = 2
"""ATen's number of torch.cdist's mode `donot_use_mm_for_euclid_dist`."""


@aten("_cdist_forward", "cdist")
def cdist(op: AtenBuilder, a: Value, b: Value, p: float = 2, compute_mode: int | None = None) -> Value:
    if p == 2 and compute_mode != _WITHOUT_PRODUCTS:
        return op.composite("Distances", a, b)
    return _distance(op, op.Unsqueeze(a, [-2]) - op.Unsqueeze(b, [-3]), p)


def _distance(op: AtenBuilder, difference: Value, p: float) -> Value:
    """The p-norm over the last axis. That of order 0, torch's own included, has zeros for a gradient, and not none."""
    if p != 0:
        return length(op, difference, p, [-1], False)
    zero = op.cast(0, difference.dtype)
    is_zero = op.Equal(difference, zero)
    # The inner choice lets pass what the outer one doesn't.
    differs = op.Where(is_zero, op.Where(is_zero, zero, difference), op.cast(1, difference.dtype))
    return op.ReduceSum(differs, [-1], keepdims=0)
