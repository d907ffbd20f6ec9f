"""Whole numbers without a sign, of 16 bits and more: torch has memory for them, and next to no kernels.

    Add(a: uint32, b: uint32)   →   Cast(Add(Cast(a, int64), Cast(b, int64)), uint32)

int64 holds all values of 16 and 32 bits, so that an order, a quotient or a remainder is the same; and what overflows is
cut off where it would have been. Of 64 bits it holds the bits. Sums, products and rearrangements come out right by
themselves; for an order the highest bit is turned over first; division takes one step more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ontrain.graph import Builder
from ontrain.operators import View, record_of, schema_of

__all__ = ["UNSIGNED", "signed"]

_NARROW = (ir.DataType.UINT16, ir.DataType.UINT32)
_WIDE, _INT64 = ir.DataType.UINT64, ir.DataType.INT64
UNSIGNED = (*_NARROW, _WIDE)
_HIGHEST = np.array(np.iinfo(np.int64).min)
_OTHERS = np.array(np.iinfo(np.int64).max)
_AS_IT_LIES = (View.SAME, View.RESHAPED, View.PERMUTED, View.REPEATED)

Values = list[ir.Value | None]
Rewrite = Callable[[Builder, ir.Node, Values], Values]
_of_64_bits: dict[str, Rewrite] = {}


def _by_bits(*op_types: str) -> Callable[[Rewrite], Rewrite]:
    """Register what operators do with bits of uint64 that int64 holds."""

    def register(rewrite: Rewrite) -> Rewrite:
        _of_64_bits.update(dict.fromkeys(op_types, rewrite))
        return rewrite

    return register


@cache
def _takes_int64(domain: str, op_type: str, at: int) -> bool:
    schema = schema_of(op_type, domain, onnx.defs.onnx_opset_version() if not domain else 1)
    if schema is None or not schema.inputs:
        return False
    allowed = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    return "tensor(int64)" in allowed.get(schema.inputs[min(at, len(schema.inputs) - 1)].type_str, ())


def signed(op: Builder, node: ir.Node, inputs: Values) -> Values | None:
    """Return the results of a node computed in int64; None where it has no such operand, or is defined without sign."""
    unsigned = {i: v for i, v in enumerate(inputs) if v is not None and v.dtype in UNSIGNED}
    if not unsigned or node.op_type in ("Cast", "BitCast") or record_of(node).view in _AS_IT_LIES:
        return None
    if not all(_takes_int64(node.domain, node.op_type, i) for i in unsigned):
        return None
    signed_inputs = [
        v if i not in unsigned or v is None else _bits(op, v) if v.dtype == _WIDE else op.Cast(v, to=_INT64)
        for i, v in enumerate(inputs)
    ]
    wide = any(value.dtype == _WIDE for value in unsigned.values())
    results = (_of_64_bits.get(node.op_type, _same) if wide else _same)(op, node, signed_inputs)
    return [
        value if before.dtype not in UNSIGNED or value is None
        else op.BitCast(value, to=_WIDE) if before.dtype == _WIDE
        else op.Cast(value, to=before.dtype)
        for value, before in zip(results, node.outputs, strict=True)
    ]  # fmt: skip


def _bits(op: Builder, value: ir.Value) -> ir.Value:
    if value.const_value is not None:
        return op.const(value.const_value.numpy().view(np.int64))
    bits: ir.Value = op.BitCast(value, to=_INT64)
    return bits


def _same(op: Builder, node: ir.Node, inputs: Values) -> Values:
    copy = ir.Node(node.domain, node.op_type, inputs, node.attributes.values(), num_outputs=len(node.outputs))
    results = op.add(copy)
    return [results] if isinstance(results, ir.Value) else list(results)


@_by_bits("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Max", "Min", "TopK", "ReduceMax", "ReduceMin", "ArgMax",
          "ArgMin", "Clip")  # fmt: skip
def _ordered(op: Builder, node: ir.Node, inputs: Values) -> Values:
    """With the highest bit turned over the order is that of signed numbers."""
    turned = [
        op.BitwiseXor(v, _HIGHEST) if v is not None and before is not None and before.dtype == _WIDE else v
        for v, before in zip(inputs, node.inputs, strict=True)
    ]
    results = _same(op, node, turned)
    return [
        op.BitwiseXor(value, _HIGHEST) if value is not None and before.dtype == _WIDE else value
        for value, before in zip(results, node.outputs, strict=True)
    ]


@_by_bits("Sign")
def _sign(op: Builder, node: ir.Node, inputs: Values) -> Values:
    return [op.Cast(op.Not(op.Equal(inputs[0], 0)), to=_INT64)]


@_by_bits("Div")
def _div(op: Builder, node: ir.Node, inputs: Values) -> Values:
    return [_divided(op, *inputs)]


@_by_bits("Mod")
def _mod(op: Builder, node: ir.Node, inputs: Values) -> Values:
    x, y = inputs
    return [op.Sub(x, op.Mul(_divided(op, x, y), y))]


def _divided(op: Builder, x: Any, y: Any) -> ir.Value:
    """The quotient of half of x, doubled, is right or one too small; a divisor of the upper half goes once at most."""
    large = op.Less(y, 0)
    doubled = op.Mul(op.Div(_halved(op, x), op.Where(large, np.array(1), y)), np.array(2))
    rest = op.Sub(x, op.Mul(doubled, y))
    quotient = op.Add(doubled, op.Cast(_not_less(op, rest, y), to=_INT64))
    result: ir.Value = op.Where(large, op.Cast(_not_less(op, x, y), to=_INT64), quotient)
    return result


def _halved(op: Builder, x: Any) -> Any:
    return op.BitwiseAnd(op.BitShift(x, np.array(1), direction="RIGHT"), _OTHERS)


def _not_less(op: Builder, x: Any, y: Any) -> Any:
    return op.GreaterOrEqual(op.BitwiseXor(x, _HIGHEST), op.BitwiseXor(y, _HIGHEST))


@_by_bits("BitShift")
def _shifted(op: Builder, node: ir.Node, inputs: Values) -> Values:
    """To the right no copies of the highest bit may come in."""
    if node.attributes["direction"].as_string() == "LEFT":
        return _same(op, node, inputs)
    x, by = inputs
    rest = op.BitShift(_halved(op, x), op.Sub(by, np.array(1)), direction="RIGHT")
    return [op.Where(op.Equal(by, 0), x, rest)]
