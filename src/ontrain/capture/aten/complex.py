"""Complex numbers as pairs of real tensors: they live inside a forward, and never cross the border of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ontrain.capture.aten.arithmetic import atan2
from ontrain.capture.aten.creation import filled
from ontrain.capture.aten.registry import Handler, Translation, find, operator_name
from ontrain.capture.context import AtenBuilder
from ontrain.internals import OpOverload
from ontrain.operators import Value
from ontrain.sizes import Size

__all__ = ["Complex", "complexes", "is_complex", "on_complex", "translate_complex"]


@dataclass(frozen=True)
class Complex:
    """The two parts of a complex tensor, equal in shape and dtype."""

    real: Value
    imag: Value


Term = Complex | Value | complex | Size
"""What a translation is given of an operator one of whose operands is complex."""

complexes: dict[str, Handler] = {}
"""Translations of operators that take or give complex tensors, by name without overload."""

# Operators that do the same to both parts.
_PARTWISE = frozenset({
    "view", "reshape", "flatten", "unflatten", "_unsafe_view", "squeeze", "unsqueeze", "permute", "transpose", "t",
    "movedim", "expand", "slice", "select", "narrow", "cat", "stack", "index_select", "gather", "index", "sum",
    "mean", "neg", "roll", "flip", "clone", "contiguous", "detach", "alias", "repeat", "split", "unbind", "chunk",
    "split_with_sizes", "constant_pad_nd", "pad", "where", "cumsum", "lift_fresh_copy", "zeros_like", "diff", "tril",
    "triu",
})  # fmt: skip


def on_complex(*names: str) -> Callable[[Translation], Translation]:
    """Register the decorated function as what these operators do to complex tensors, given as `Complex`."""

    def register(handler: Translation) -> Translation:
        complexes.update(dict.fromkeys(names, handler))
        return handler

    return register


def is_complex(value: object) -> bool:
    """Whether a value, a tensor as torch sees it, or one in a list of them is complex."""
    if isinstance(value, list | tuple):
        return any(is_complex(item) for item in value)
    return isinstance(value, Complex | complex) or (isinstance(value, torch.Tensor) and value.is_complex())


def translate_complex(op: AtenBuilder, target: object, args: Sequence[Any], named: dict[str, Any]) -> Any:
    """Translate a call that takes or gives complex tensors.

    Raises:
        CaptureError: the operator is known for real tensors only.
    """
    assert isinstance(target, OpOverload), target
    name = operator_name(target)
    if name in complexes:
        return complexes[name](op, *args, **named)
    if name in _PARTWISE:
        handler = find(target)
        assert handler is not None
        parts = [handler(op, *_part(args, which), **named) for which in ("real", "imag")]
        if isinstance(parts[0], list | tuple):
            return [Complex(*pair) for pair in zip(*parts, strict=True)]
        return Complex(*parts)
    raise op.refuse(
        f"{target} of complex tensors",
        "ontrain keeps a complex tensor as two real ones, and has no translation for this operator on them",
        "compute with torch.view_as_real, real and imag instead",
    )


def _part(value: Any, which: str) -> Any:
    if isinstance(value, list | tuple):
        return [_part(item, which) for item in value]
    return getattr(value, which) if isinstance(value, Complex) else value


def _as_complex(op: AtenBuilder, x: Term) -> Complex:
    if isinstance(x, Complex):
        return x
    if isinstance(x, complex):
        return Complex(op.cast(x.real, op.dtype), op.cast(x.imag, op.dtype))
    real = op.cast(x, op.dtype)
    return Complex(real, op.cast(0, op.dtype))


def _full(op: AtenBuilder, x: Complex) -> Complex:
    """Both parts in the shape of the current node's result."""
    zero = filled(op, 0)
    return Complex(x.real + zero, x.imag + zero)


@on_complex("to", "_to_copy", "type_as")
def to(op: AtenBuilder, x: Complex | Value, *_: object, **__: object) -> Complex | Value:
    if isinstance(x, Complex):
        real = op.cast(x.real, op.dtype)
        return Complex(real, op.cast(x.imag, op.dtype)) if op.val.is_complex() else real
    return _full(op, _as_complex(op, x))


@on_complex("add", "sub", "rsub")
def add(op: AtenBuilder, a: Term, b: Term, *, alpha: float = 1) -> Complex:
    name = str(op.node.target)
    a, b = _as_complex(op, a), _as_complex(op, b)
    if "rsub" in name:
        a, b = b, a
    sign = op.cast(-alpha if "sub" in name else alpha, op.dtype)
    return _full(op, Complex(a.real + sign * b.real, a.imag + sign * b.imag))


def _product(op: AtenBuilder, a: Complex, b: Complex, times: Callable[[Value, Value], Value]) -> Complex:
    return Complex(
        times(a.real, b.real) - times(a.imag, b.imag), times(a.real, b.imag) + times(a.imag, b.real)
    )  # fmt: skip


@on_complex("mul")
def mul(op: AtenBuilder, a: Term, b: Term) -> Complex:
    if isinstance(a, Complex) and isinstance(b, Complex | complex):
        return _product(op, a, _as_complex(op, b), lambda x, y: x * y)
    if isinstance(b, Complex):
        a, b = b, a
    if isinstance(b, complex):
        return _full(op, _product(op, _as_complex(op, a), _as_complex(op, b), lambda x, y: x * y))
    assert isinstance(a, Complex | complex) and not isinstance(b, Complex)
    factor = op.cast(b, op.dtype)
    return Complex(a.real * factor, a.imag * factor)


@on_complex("matmul", "mm", "bmm")
def matmul(op: AtenBuilder, a: Complex | Value, b: Complex | Value) -> Complex:
    if not isinstance(a, Complex):
        assert isinstance(b, Complex)
        return Complex(op.MatMul(op.cast(a, op.dtype), b.real), op.MatMul(op.cast(a, op.dtype), b.imag))
    if not isinstance(b, Complex):
        return Complex(op.MatMul(a.real, op.cast(b, op.dtype)), op.MatMul(a.imag, op.cast(b, op.dtype)))
    return _product(op, a, b, op.MatMul)


@on_complex("div")
def div(op: AtenBuilder, a: Term, b: Term) -> Complex:
    if not isinstance(b, Complex | complex):
        assert isinstance(a, Complex | complex)
        divisor = op.cast(b, op.dtype)
        return Complex(a.real / divisor, a.imag / divisor)
    a, b = _as_complex(op, a), _as_complex(op, b)
    size = b.real * b.real + b.imag * b.imag
    top = _product(op, a, Complex(b.real, op.Neg(b.imag)), lambda x, y: x * y)
    return Complex(top.real / size, top.imag / size)


@on_complex("reciprocal")
def reciprocal(op: AtenBuilder, x: Complex) -> Complex:
    size = x.real * x.real + x.imag * x.imag
    return Complex(x.real / size, op.Neg(x.imag / size))


@on_complex("exp")
def exp(op: AtenBuilder, x: Complex) -> Complex:
    size = op.Exp(x.real)
    return Complex(size * op.Cos(x.imag), size * op.Sin(x.imag))


def _stacked(op: AtenBuilder, x: Complex) -> Value:
    return op.Concat(op.Unsqueeze(x.real, [-1]), op.Unsqueeze(x.imag, [-1]), axis=-1)


@on_complex("abs")
def absolute(op: AtenBuilder, x: Complex) -> Value:
    """A norm over the pair: its gradient at zero is zero, as torch's."""
    return op.ReduceL2(_stacked(op, x), [-1], keepdims=0)


@on_complex("angle")
def angle(op: AtenBuilder, x: Complex) -> Value:
    return atan2(op, x.imag, x.real)


@on_complex("real")
def real(op: AtenBuilder, x: Complex) -> Value:
    return x.real


@on_complex("imag")
def imag(op: AtenBuilder, x: Complex) -> Value:
    return x.imag


@on_complex("conj", "_conj", "conj_physical", "_conj_physical")
def conj(op: AtenBuilder, x: Complex) -> Complex:
    return Complex(x.real, op.Neg(x.imag))


@on_complex("resolve_conj", "resolve_neg")
def resolved(op: AtenBuilder, x: Complex) -> Complex:
    return x


@on_complex("view_as_real", "view_as_real_copy")
def view_as_real(op: AtenBuilder, x: Complex) -> Value:
    return _stacked(op, x)


@on_complex("view_as_complex", "view_as_complex_copy")
def view_as_complex(op: AtenBuilder, x: Value) -> Complex:
    return Complex(*(op.Squeeze(part, [-1]) for part in op.Split(x, axis=-1, num_outputs=2, outputs=2)))


@on_complex("complex")
def from_parts(op: AtenBuilder, a: Value, b: Value) -> Complex:
    return _full(op, Complex(a, b))


@on_complex("polar")
def polar(op: AtenBuilder, size: Value, phase: Value) -> Complex:
    return _full(op, Complex(size * op.Cos(phase), size * op.Sin(phase)))
