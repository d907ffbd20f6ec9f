"""Elementwise arithmetic, comparison and logic of several tensors, with torch's type promotion."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import onnx_ir as ir
import torch

from ontrain.capture.aten.precision import in_single
from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder, Scalar, dtype_of
from ontrain.operators import HALVES, Value

__all__ = ["atan2", "difference", "not_negative"]


def _scaled(op: AtenBuilder, x: Value | Scalar, alpha: Scalar) -> Value:
    x = op.cast(x, op.dtype)
    return x if alpha == 1 else x * op.cast(alpha, op.dtype)


@aten("add")
def add(op: AtenBuilder, a: Value, b: Value | Scalar, *, alpha: Scalar = 1) -> Value:
    if op.dtype == ir.DataType.BOOL:
        return op.Or(a, op.cast(b, ir.DataType.BOOL))
    return _with_multiple(op, a, b, alpha)


def _with_multiple(op: AtenBuilder, a: Value | Scalar, b: Value | Scalar, alpha: Scalar) -> Value:
    return op.cast(a, op.dtype) + op.cast(b, op.dtype) if alpha == 1 else _with_product(op, a, b, alpha)


@in_single
def _with_product(op: AtenBuilder, a: Value | Scalar, b: Value | Scalar, alpha: Scalar) -> Value:
    return op.cast(a, op.dtype) + _scaled(op, b, alpha)


@aten("sub")
def sub(op: AtenBuilder, a: Value, b: Value | Scalar, *, alpha: Scalar = 1) -> Value:
    return op.cast(a, op.dtype) - op.cast(b, op.dtype) if alpha == 1 else _with_multiple(op, a, b, -alpha)


@aten("rsub")
def rsub(op: AtenBuilder, a: Value, b: Value | Scalar, alpha: Scalar = 1) -> Value:
    return op.cast(b, op.dtype) - op.cast(a, op.dtype) if alpha == 1 else _with_multiple(op, b, a, -alpha)


@aten("mul")
def mul(op: AtenBuilder, a: Value, b: Value | Scalar) -> Value:
    if op.dtype == ir.DataType.BOOL:
        return op.And(a, op.cast(b, ir.DataType.BOOL))
    return op.cast(a, op.dtype) * op.cast(b, op.dtype)


@aten("addcmul", "addcdiv")
@in_single
def addc(op: AtenBuilder, x: Value, a: Value, b: Value, *, value: Scalar = 1) -> Value:
    a, b = op.cast(a, op.dtype), op.cast(b, op.dtype)
    return op.cast(x, op.dtype) + _scaled(op, a * b if "addcmul" in str(op.node.target) else a / b, value)


@aten("lerp")
@in_single
def lerp(op: AtenBuilder, a: Value, b: Value, weight: Value | Scalar) -> Value:
    return a + op.cast(weight, op.dtype) * (b - a)


@aten("div", "true_divide", "divide")
def div(op: AtenBuilder, a: Value, b: Value | Scalar, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return floor_divide(op, a, b)
    a, b = op.cast(a, op.dtype), op.cast(b, op.dtype)
    quotient = a / b
    if rounding_mode == "trunc" and op.val.dtype.is_floating_point:
        return op.Sign(quotient) * op.Floor(op.Abs(quotient))
    return quotient


@aten("floor_divide")
def floor_divide(op: AtenBuilder, a: Value | Scalar, b: Value | Scalar) -> Value:
    # In half precision torch divides in float32, by a number that has not been rounded.
    wide = ir.DataType.FLOAT if op.dtype in HALVES else op.dtype
    a, b = op.cast(a, wide), op.cast(b, wide)
    if op.val.dtype.is_floating_point:
        # Not ⌊a / b⌋: the quotient may round up to a whole number. Nothing has a gradient.
        rest, apart = _rest(op, a, b)
        quotient = op.Round((a - rest) / b) - op.cast(apart, a.dtype)
        return op.cast(op.Where(op.Equal(b, op.cast(0, b.dtype)), op.Floor(a / b), quotient), op.dtype)
    # ONNX cuts integer quotients towards zero; without its remainder (of the divisor's sign) the quotient is exact.
    return (a - op.Mod(a, b)) / b


@aten("remainder")
def remainder(op: AtenBuilder, a: Value, b: Value | Scalar) -> Value:
    a, b = op.cast(a, op.dtype), op.cast(b, op.dtype)
    if not op.val.dtype.is_floating_point:
        return op.Mod(a, b)
    rest, apart = _rest(op, a, b)
    return op.Where(apart, rest + b, rest)


def _rest(op: AtenBuilder, a: Value, b: Value) -> tuple[Value, Value]:
    """What division towards zero leaves of a, and whether that has another sign than b."""
    rest, zero = op.Mod(a, b, fmod=1), op.cast(0, a.dtype)
    return rest, op.And(op.Xor(op.Less(rest, zero), op.Less(b, zero)), op.Not(op.Equal(rest, zero)))


@aten("fmod")
def fmod(op: AtenBuilder, a: Value, b: Value | Scalar) -> Value:
    return op.Mod(op.cast(a, op.dtype), op.cast(b, op.dtype), fmod=1)


@aten("pow")
def power(op: AtenBuilder, a: Value | Scalar, b: Value | Scalar) -> Value:
    if isinstance(b, bool) and isinstance(a, ir.Value) and a.dtype == ir.DataType.BOOL:
        raise op.refuse("a bool to the power of a bool", "torch.export says int64 of it where eager computes a bool",
                        "write a.clone() for True, torch.ones_like(a) for False")  # fmt: skip
    if isinstance(b, int | float):
        base = op.cast(a, op.dtype)
        if b in (1, 2):
            return base * base if b == 2 else base
        if b == 0.5:
            return op.Sqrt(base)
        if b == -1:
            return op.Reciprocal(base)
        if b == -0.5:
            return op.Reciprocal(op.Sqrt(base))
    if op.dtype in _NARROW:
        wide = op.Pow(op.cast(a, ir.DataType.INT64), op.cast(b, ir.DataType.INT64))
        return op.cast(wide, op.dtype)  # which leaves the low bits, as products that overflow do
    return op.Pow(op.cast(a, op.dtype), op.cast(b, op.dtype))


_NARROW = (ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.INT16)
"""Integers that ONNX has no Pow of."""


@aten("atan2")
@in_single
def atan2(op: AtenBuilder, y: Value | Scalar, x: Value | Scalar) -> Value:
    """Return the angle of the point (x, y), whose gradient is finite on the axes."""
    y, x = op.cast(y, op.dtype), op.cast(x, op.dtype)
    zero, one, pi = (op.cast(value, op.dtype) for value in (0, 1, math.pi))
    # The smaller side over the greater: the quotient, and its derivative, stay finite on the axes.
    steep = op.Greater(op.Abs(y), op.Abs(x))
    top, bottom = op.Where(steep, x, y), op.Where(steep, y, x)
    flat = op.Equal(bottom, zero)
    angle = op.Atan(op.Where(flat, zero, top) / op.Where(flat, one, bottom))
    half = op.Where(op.Less(y, zero), op.cast(-math.pi / 2, op.dtype), op.cast(math.pi / 2, op.dtype))
    turned = op.Where(op.Less(y, zero), angle - pi, angle + pi)
    return op.Where(steep, half - angle, op.Where(op.Less(x, zero), turned, angle))


def _extreme(op_type: str) -> Callable[..., Value]:
    def translate(op: AtenBuilder, a: Value | Scalar, b: Value | Scalar) -> Value:
        a, b = op.cast(a, op.dtype), op.cast(b, op.dtype)
        if op.dtype == ir.DataType.BOOL:
            return op.Or(a, b) if op_type == "Max" else op.And(a, b)
        return op.call("", op_type, [a, b], {})

    return translate


aten("maximum", "max.other")(_extreme("Max"))
aten("minimum", "min.other")(_extreme("Min"))


def _extreme_number(op_type: str, wins: str) -> Callable[..., Value]:
    def translate(op: AtenBuilder, a: Value | Scalar, b: Value | Scalar) -> Value:
        """The extreme of those that are no NaN."""
        if not op.dtype.is_floating_point():
            return _extreme(op_type)(op, a, b)
        a, b = op.cast(a, op.dtype), op.cast(b, op.dtype)
        if not _ties_are_shared():
            return op.Where(op.Or(op.call("", wins, [a, b], {}), op.IsNaN(b)), a, b)
        return op.Where(op.IsNaN(a), b, op.Where(op.IsNaN(b), a, op.call("", op_type, [a, b], {})))

    return translate


aten("fmax")(_extreme_number("Max", "GreaterOrEqual"))
aten("fmin")(_extreme_number("Min", "LessOrEqual"))


@aten("clamp", "clip")
def clamp(op: AtenBuilder, x: Value, min: Value | Scalar | None = None, max: Value | Scalar | None = None) -> Value:
    x, shared = op.cast(x, op.dtype), _shares_ties(op.dtype)
    low, high = (None if bound is None else op.cast(bound, op.dtype) for bound in (min, max))
    if getattr(op.node.target, "_overloadname", "") != "Tensor":
        return _clamped(op, x, low, high)
    if op.dtype == ir.DataType.BOOL:
        x = x if low is None else op.Or(x, low)
        return x if high is None else op.And(x, high)
    numbers = all(bound is None or (bound.shape is not None and len(bound.shape) == 0) for bound in (low, high))
    if numbers and not shared:
        return op.Clip(x, low, high)
    if shared or not op.dtype.is_floating_point():
        x = x if low is None else op.Max(x, low)
        return x if high is None else op.Min(x, high)
    # An x on a bound has all of the gradient. A NaN, of x or of a bound, makes a NaN and has none.
    nan = op.cast(math.nan, op.dtype)
    x = x if low is None else op.Where(op.GreaterOrEqual(x, low), x, op.Where(op.Less(x, low), low, nan))
    return x if high is None else op.Where(op.LessOrEqual(x, high), x, op.Where(op.Greater(x, high), high, nan))


@aten("clamp_min", "clamp_min.Tensor")
def clamp_min(op: AtenBuilder, x: Value, min: Value | Scalar) -> Value:
    return clamp(op, x, min)


@aten("clamp_max", "clamp_max.Tensor")
def clamp_max(op: AtenBuilder, x: Value, max: Value | Scalar) -> Value:
    return clamp(op, x, None, max)


def _clamped(op: AtenBuilder, x: Value, low: Value | None, high: Value | None) -> Value:
    """Return x between two numbers."""
    if _shares_ties(x.dtype):
        return op.composite("Hardtanh", x, low, high, strict=1)
    return op.Clip(x, low, high)


def not_negative(op: AtenBuilder, x: Value) -> Value:
    """Return what torch's losses take from x: clamp_min(x, 0)."""
    return _clamped(op, x, op.cast(0, x.dtype), None)


def _shares_ties(dtype: ir.DataType | None) -> bool:
    """Whether clamp shares ties of this dtype; whole numbers have no gradient."""
    return dtype is not None and dtype.is_floating_point() and _ties_are_shared()


@cache
def _ties_are_shared() -> bool:
    """Whether equal operands of fmax, fmin and clamp share the gradient, as they do since torch 2.14.

    Nothing is left for an x on a bound of clamp that is a number. Before, all of it was the first operand's.
    """
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.zeros(1, device="cpu", requires_grad=True)
        return not torch.autograd.grad(x.clamp(0, 1), x, torch.ones(1, device="cpu"))[0].item()


def difference(op: AtenBuilder, a: Value, b: Value, places: tuple[int, int] = (0, 1)) -> Value:
    """Return a − b, the current node's arguments at two places, in the dtype in which torch subtracts them."""
    dtype = _common(op, places)
    return op.cast(a, dtype) - op.cast(b, dtype)


_STAND_INS = {torch.SymInt: 1, torch.SymFloat: 1.0, torch.SymBool: True}
"""Numbers of the kinds of what a graph computes; the kind is all that a dtype depends on."""


def _common(op: AtenBuilder, places: tuple[int, int] = (0, 1)) -> ir.DataType:
    """The dtype in which torch compares two of the current node's arguments."""
    shown: list[Any] = []
    for value in (op.node.args[place] for place in places):
        val = value.meta["val"] if isinstance(value, torch.fx.Node) else value
        if isinstance(val, torch.Tensor):
            val = torch.empty([1] * val.ndim, dtype=val.dtype, device="meta")
        shown.append(_STAND_INS.get(type(val), val))  # a size may follow from values: asking for it would be a guard
    return dtype_of(torch.result_type(*shown))


def _comparison(op_type: str, negated: bool = False) -> Callable[..., Value]:
    def translate(op: AtenBuilder, a: Value | Scalar, b: Value | Scalar) -> Value:
        dtype = _common(op)
        if dtype == ir.DataType.BOOL and op_type != "Equal":
            dtype = ir.DataType.INT32
        answer = op.call("", op_type, [op.cast(a, dtype), op.cast(b, dtype)], {})
        return op.Not(answer) if negated else answer

    return translate


for _name, _op_type in (
    ("eq", "Equal"), ("lt", "Less"), ("le", "LessOrEqual"), ("gt", "Greater"), ("ge", "GreaterOrEqual"),
):  # fmt: skip
    aten(_name)(_comparison(_op_type))
aten("ne")(_comparison("Equal", negated=True))


def _boolean(op: AtenBuilder, x: Value | Scalar) -> Value:
    return op.cast(x, ir.DataType.BOOL)


def _logical(op_type: str, bitwise: str | None = None) -> Callable[..., Value]:
    def translate(op: AtenBuilder, a: Value | Scalar, b: Value | Scalar) -> Value:
        if bitwise is not None and op.dtype != ir.DataType.BOOL:
            return op.call("", bitwise, [op.cast(a, op.dtype), op.cast(b, op.dtype)], {})
        return op.call("", op_type, [_boolean(op, a), _boolean(op, b)], {})

    return translate


for _word, _op_type in (("and", "And"), ("or", "Or"), ("xor", "Xor")):
    aten(f"logical_{_word}")(_logical(_op_type))
    aten(f"bitwise_{_word}", f"__{_word}__")(_logical(_op_type, f"Bitwise{_op_type}"))


@aten("logical_not")
def logical_not(op: AtenBuilder, x: Value) -> Value:
    return op.Not(_boolean(op, x))


@aten("bitwise_not")
def bitwise_not(op: AtenBuilder, x: Value) -> Value:
    return op.Not(x) if x.dtype == ir.DataType.BOOL else op.BitwiseNot(x)


@aten("isnan")
def isnan(op: AtenBuilder, x: Value) -> Value:
    return op.IsNaN(_real(op, x))


@aten("isinf")
def isinf(op: AtenBuilder, x: Value) -> Value:
    return op.IsInf(_real(op, x))


@aten("isfinite")
def isfinite(op: AtenBuilder, x: Value) -> Value:
    x = _real(op, x)
    return op.Not(op.Or(op.IsInf(x), op.IsNaN(x)))


def _real(op: AtenBuilder, x: Value) -> Value:
    return x if x.dtype.is_floating_point() else op.cast(x, ir.DataType.FLOAT)


@aten("nan_to_num")
def nan_to_num(
    op: AtenBuilder, x: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Value:
    if not op.val.dtype.is_floating_point:
        return x  # every integer is a number
    limits = torch.finfo(op.val.dtype)
    high = op.cast(limits.max if posinf is None else posinf, op.dtype)
    low = op.cast(limits.min if neginf is None else neginf, op.dtype)
    x = op.Where(op.IsNaN(x), op.cast(nan or 0.0, op.dtype), x)
    x = op.Where(op.IsInf(x, detect_negative=0), high, x)
    return op.Where(op.IsInf(x, detect_positive=0), low, x)


@aten("where")
def where(op: AtenBuilder, condition: Value, a: Value | Scalar, b: Value | Scalar) -> Value:
    return op.Where(_boolean(op, condition), op.cast(a, op.dtype), op.cast(b, op.dtype))


@aten("masked_fill")
def masked_fill(op: AtenBuilder, x: Value, mask: Value, value: Value | Scalar) -> Value:
    return op.Where(_boolean(op, mask), op.cast(value, op.dtype), op.cast(x, op.dtype))


@aten("signbit")
def signbit(op: AtenBuilder, x: Value) -> Value:
    if not op.argument(0).dtype.is_floating_point:
        return (
            op.Less(x, op.cast(0, x.dtype)) if x.dtype != ir.DataType.BOOL else op.expand(op.const(False), op.shape, [])
        )
    zero = op.cast(0, x.dtype)
    minus_zero = op.And(op.Equal(x, zero), op.Less(op.Reciprocal(x), zero))
    return op.Or(op.Less(x, zero), minus_zero)


@aten("copysign")
def copysign(op: AtenBuilder, a: Value, b: Value | Scalar) -> Value:
    a, b = op.Abs(op.cast(a, op.dtype)), op.cast(b, op.dtype)
    zero = op.cast(0, op.dtype)
    negative = op.Or(op.Less(b, zero), op.And(op.Equal(b, zero), op.Less(op.Reciprocal(b), zero)))
    return op.constant_in(op.Where(negative, op.Neg(a), a), b)


@aten("hypot")
@in_single
def hypot(op: AtenBuilder, a: Value, b: Value) -> Value:
    a, b = op.cast(a, op.dtype), op.cast(b, op.dtype)
    return op.Sqrt(a * a + b * b)


@aten("ldexp")
@in_single
def ldexp(op: AtenBuilder, x: Value, exponent: Value | int) -> Value:
    return op.cast(x, op.dtype) * op.Pow(op.cast(2, op.dtype), op.cast(exponent, op.dtype))


@aten("angle")
def angle(op: AtenBuilder, x: Value) -> Value:
    x = op.cast(x, op.dtype)
    turned = op.Where(op.Less(x, op.cast(0, op.dtype)), op.cast(math.pi, op.dtype), op.cast(0, op.dtype))
    return op.Where(op.IsNaN(x), x, turned)


@aten("bitwise_left_shift", "__lshift__", "bitwise_right_shift", "__rshift__")
def shift(op: AtenBuilder, a: Value, b: Value | Scalar) -> Value:
    """A product with a power of two, or the floor of a quotient: ONNX shifts unsigned integers only."""
    dtype = ir.DataType.INT64 if op.dtype in _NARROW else op.dtype
    a, b = op.cast(a, dtype), op.cast(b, dtype)
    power = op.Pow(op.cast(2, dtype), b)
    if "left" in str(op.node.target) or "lshift" in str(op.node.target):
        return op.cast(op.Mul(a, power), op.dtype)
    return op.cast((a - op.Mod(a, power)) / power, op.dtype)


@aten("fake_quantize_per_tensor_affine", "fake_quantize_per_channel_affine")
def fake_quantize(op: AtenBuilder, x: Value, scale: Value | float, zero_point: Value | int, *rest: int) -> Value:
    """Rounded to the grid; the gradient passes as if it were not, where the grid reaches."""
    *axis, low, high = rest
    if axis:
        shape = [-1 if d == axis[0] % len(op.input_shape(0)) else 1 for d in range(len(op.input_shape(0)))]
        scale, zero_point = op.Reshape(scale, shape), op.Reshape(zero_point, shape)
    scale, zero_point = op.cast(scale, op.dtype), op.cast(zero_point, op.dtype)
    least, most = op.cast(low, op.dtype), op.cast(high, op.dtype)
    place = op.Round(op.composite("Detach", x) / scale + zero_point)
    y = (op.Min(op.Max(place, least), most) - zero_point) * scale
    inside = op.And(op.GreaterOrEqual(place, least), op.LessOrEqual(place, most))
    return op.Where(inside, x - op.composite("Detach", x) + y, y)
