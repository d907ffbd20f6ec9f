"""Complex numbers as pairs of real tensors: they live inside a forward, and never cross the border of a graph."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from ontrain.capture.aten.arithmetic import atan2
from ontrain.capture.aten.creation import filled
from ontrain.capture.aten.registry import Handler, Translation, entered, find, operator_name
from ontrain.capture.context import AtenBuilder
from ontrain.internals import OpOverload
from ontrain.operators import Value
from ontrain.sizes import Size

__all__ = [
    "Complex", "Term", "as_complex", "complexes", "full_shape", "is_complex", "joined_product", "matmul", "on_complex",
    "pair", "parts", "real_translation", "translate_complex",
]  # fmt: skip


@dataclass(frozen=True)
class Complex:
    """The two parts of a complex tensor, equal in shape and dtype.

    `joined` holds both along a last axis of two, where they were computed so: what reads it needs neither part.
    """

    real: Value
    imag: Value
    joined: Value | None = None


Term = Complex | Value | complex | Size
"""What a translation is given of an operator one of whose operands is complex."""

complexes: dict[str, Handler] = {}
"""Translations of operators that take or give complex tensors, by name without overload."""

_ALONG = {"slice": 0, "slice_scatter": 1, "cat": 0}
"""Operators that a last axis of two does not disturb, by the place of the operand before the axis that they take."""
# Operators that do the same to both parts.
_PARTWISE = frozenset({
    "view", "reshape", "flatten", "unflatten", "_unsafe_view", "squeeze", "unsqueeze", "permute", "transpose", "t",
    "movedim", "expand", "slice", "select", "narrow", "cat", "stack", "index_select", "gather", "index", "sum",
    "mean", "neg", "roll", "flip", "clone", "contiguous", "detach", "alias", "repeat", "split", "unbind", "chunk",
    "split_with_sizes", "constant_pad_nd", "pad", "cumsum", "lift_fresh_copy", "zeros_like", "diff", "tril", "triu",
    "diagonal", "diag_embed", "repeat_interleave", "unfold", "slice_scatter", "select_scatter", "diagonal_scatter",
    "index_put", "index_add", "index_copy", "scatter", "scatter_add", "trace", "rot90", "broadcast_to", "view_as",
    "expand_as", "broadcast_tensors", "swapaxes", "swapdims", "mT", "numpy_T", "T", "moveaxis", "upsample_nearest1d",
    "upsample_nearest2d", "meshgrid", "tensor_split", "ontrain::revalued",
})  # fmt: skip


def on_complex(*names: str) -> Callable[[Translation], Translation]:
    """Register the decorated function as what these operators do to complex tensors, given as `Complex`."""
    return entered(complexes, *names)


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
        real, imag = (handler(op, *_part(op, args, which), **_part(op, named, which)) for which in ("real", "imag"))
        if isinstance(real, list | tuple):
            return [Complex(*both) for both in zip(real, imag, strict=True)]
        return Complex(real, imag, _along(op, handler, name, args, named))
    raise op.refuse(
        f"{target} of complex tensors",
        "ontrain keeps a complex tensor as two real ones, and has no translation for this operator on them",
        "compute with torch.view_as_real, real and imag instead",
    )


def real_translation(op: AtenBuilder) -> Handler:
    """Return what the current node's operator does to real tensors."""
    handler = find(op.node.target)
    assert handler is not None
    return handler


def _along(op: AtenBuilder, handler: Handler, name: str, args: Sequence[Any], named: dict[str, Any]) -> Value | None:
    """Both parts at once, where they lie along a last axis and the operator works along another."""
    before = _ALONG.get(name)
    if before is None or named:
        return None
    terms, (dim, *settings) = args[: before + 1], args[before + 1 :] or [0]
    tensors = [term for value in terms for term in (value if isinstance(value, list | tuple) else [value])]
    if not all(isinstance(term, Complex) for term in tensors) or all(term.joined is None for term in tensors):
        return None
    if settings[2:] not in ([], [1]) or not isinstance(dim, int):
        return None
    whole = [[pair(op, t) for t in term] if isinstance(term, list | tuple) else pair(op, term) for term in terms]
    joined: Value = handler(op, *whole, dim % len(op.shape), *settings)
    return joined


def _part(op: AtenBuilder, value: Any, which: str) -> Any:
    """One part of each operand: what is real has an imaginary part of zeros; indices, masks and sizes are for both."""
    if isinstance(value, dict):
        return {name: _part(op, item, which) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_part(op, item, which) for item in value]
    if isinstance(value, Complex | complex):
        return getattr(value, which)
    if which == "imag" and isinstance(value, float):
        return 0.0
    if which == "imag" and isinstance(value, ir.Value) and value.dtype is not None and value.dtype.is_floating_point():
        return op.Expand(op.cast(0, value.dtype), op.shape_of(value))
    return value


def as_complex(op: AtenBuilder, x: Term, dtype: ir.DataType | None = None) -> Complex:
    """Return a tensor or number as complex, its parts of the current result's dtype if no other is asked for."""
    dtype = dtype or op.dtype
    if isinstance(x, Complex):
        joined = None if x.joined is None else op.cast(x.joined, dtype)
        return Complex(op.cast(x.real, dtype), op.cast(x.imag, dtype), joined)
    if isinstance(x, complex):
        return Complex(op.cast(x.real, dtype), op.cast(x.imag, dtype))
    return Complex(op.cast(x, dtype), op.cast(0, dtype))


def full_shape(op: AtenBuilder, x: Complex) -> Complex:
    """Both parts in the shape of the current node's result."""
    zero = filled(op, 0)
    return Complex(x.real + zero, x.imag + zero)


@on_complex("to", "_to_copy", "type_as")
def to(op: AtenBuilder, x: Complex | Value, *_: object, **__: object) -> Complex | Value:
    if isinstance(x, Complex):
        real = op.cast(x.real, op.dtype)
        return Complex(real, op.cast(x.imag, op.dtype)) if op.val.is_complex() else real
    whole = as_complex(op, x)
    return full_shape(op, Complex(whole.real, op.constant_in(whole.imag, x)))


@on_complex("add", "sub", "rsub")
def add(op: AtenBuilder, a: Term, b: Term, *, alpha: float = 1) -> Complex:
    name = str(op.node.target)
    a, b = as_complex(op, a), as_complex(op, b)
    if "rsub" in name:
        a, b = b, a
    sign = op.cast(-alpha if "sub" in name else alpha, op.dtype)
    if a.joined is not None and b.joined is not None:
        return parts(op, a.joined + sign * b.joined)
    return full_shape(op, Complex(a.real + sign * b.real, a.imag + sign * b.imag))


def _product(op: AtenBuilder, a: Complex, b: Complex, times: Callable[[Value, Value], Value]) -> Complex:
    return Complex(
        times(a.real, b.real) - times(a.imag, b.imag), times(a.real, b.imag) + times(a.imag, b.real)
    )  # fmt: skip


def joined_product(op: AtenBuilder, a: Complex, b: Complex, equation: str) -> Complex | None:
    """Return an einsum of two tensors as one operator on pairs; None if the parts of both were computed apart."""
    if a.joined is None and b.joined is None:
        return None
    factors = [pair(op, as_complex(op, x)) for x in (a, b)]
    return parts(op, op.composite("ComplexEinsum", *factors, equation=equation))


def _elementwise(a: Complex, b: Complex) -> str | None:
    """The equation of a product of elements; None if a rank is not known."""
    if a.real.shape is None or b.real.shape is None:
        return None
    ranks = len(a.real.shape), len(b.real.shape)
    letters = string.ascii_letters[: max(ranks)]
    first, second = (letters[len(letters) - rank :] for rank in ranks)
    return f"{first},{second}->{letters}"


@on_complex("mul")
def mul(op: AtenBuilder, a: Term, b: Term) -> Complex:
    if isinstance(b, Complex):
        a, b = b, a
    if isinstance(a, Complex) and isinstance(b, Complex):
        equation = _elementwise(a, b)
        y = None if equation is None else joined_product(op, a, b, equation)
        return _product(op, as_complex(op, a), as_complex(op, b), lambda x, y: x * y) if y is None else y
    if isinstance(b, complex):
        return full_shape(op, _product(op, as_complex(op, a), as_complex(op, b), lambda x, y: x * y))
    assert isinstance(a, Complex | complex) and not isinstance(b, Complex)
    a, factor = as_complex(op, a), op.cast(b, op.dtype)
    if a.joined is not None and not isinstance(b, ir.Value):
        return parts(op, a.joined * factor)
    return Complex(a.real * factor, a.imag * factor)


@on_complex("matmul", "mm", "bmm")
def matmul(op: AtenBuilder, a: Complex | Value, b: Complex | Value) -> Complex:
    """Return the product of matrices, one of them complex."""
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
        a, divisor = as_complex(op, a), op.cast(b, op.dtype)
        return Complex(a.real / divisor, a.imag / divisor)
    a, b = as_complex(op, a), as_complex(op, b)
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


def pair(op: AtenBuilder, x: Complex) -> Value:
    """Return both parts along a last dimension of two."""
    if x.joined is not None:
        return x.joined
    return op.Concat(op.Unsqueeze(x.real, [-1]), op.Unsqueeze(x.imag, [-1]), axis=-1)


def parts(op: AtenBuilder, x: Value) -> Complex:
    """Return the complex tensor whose parts lie along the last dimension of `x`."""
    real, imag = op.Split(x, axis=-1, num_outputs=2, outputs=2)
    return Complex(op.Squeeze(real, [-1]), op.Squeeze(imag, [-1]), x)


@on_complex("abs")
def absolute(op: AtenBuilder, x: Complex) -> Value:
    """A norm over the pair: its gradient at zero is zero, as torch's."""
    return op.ReduceL2(pair(op, x), [-1], keepdims=0)


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
    return pair(op, x)


@on_complex("view_as_complex", "view_as_complex_copy")
def viewas_complex(op: AtenBuilder, x: Value) -> Complex:
    return parts(op, x)


@on_complex("complex")
def from_parts(op: AtenBuilder, a: Value, b: Value) -> Complex:
    return full_shape(op, Complex(a, b))


@on_complex("polar")
def polar(op: AtenBuilder, size: Value, phase: Value) -> Complex:
    return full_shape(op, Complex(size * op.Cos(phase), size * op.Sin(phase)))
