"""Sizes as torch has them while it traces, as sizes of ours: of the same value at all numbers."""

from __future__ import annotations

import pytest
import sympy
from torch.utils._sympy import functions as of_torch

from ontrain.capture.sympy_sizes import size_of
from ontrain.errors import CaptureError
from ontrain.sizes import parse

A, B = sympy.symbols("a b", integer=True, positive=True)
CASES = [
    3 * A * B + 2, (A + 1) ** 3, A * (B + 1), sympy.Rational(1, 2) * A, sympy.Mod(A, B), sympy.Max(A, B, 4),
    sympy.Min(A - B, 2), sympy.Abs(A - B), sympy.floor(A / B), sympy.ceiling(A / B),
    sympy.Piecewise((A, A > B), (B, True)),
    sympy.ITE(A > B, A > 3, B > 3), sympy.And(A > 2, B <= A), sympy.Or(A < 2, sympy.Eq(B, 5)),
    sympy.Not(sympy.Eq(A, B)),
    of_torch.FloorDiv(A, B), of_torch.CeilDiv(A, B), of_torch.PythonMod(A - 7, B),
    of_torch.ModularIndexing(A, 2, B), of_torch.IntTrueDiv(A, B), of_torch.ToFloat(A),
    of_torch.CeilToInt(of_torch.IntTrueDiv(A, B)), of_torch.TruncToInt(of_torch.IntTrueDiv(A, 2)),
    of_torch.Where(A > B, A, B), of_torch.Max(A, B), of_torch.PowByNatural(A, 2),
]  # fmt: skip


@pytest.mark.parametrize("expr", CASES, ids=str)
@pytest.mark.parametrize(("a", "b"), [(1, 1), (6, 4), (3, 17), (40, 8)])
def test_a_size_has_the_value_of_sympys_expression(expr, a, b):
    value = expr.subs({A: sympy.Integer(a), B: sympy.Integer(b)})
    size = size_of(expr)
    if value.is_Float:  # which is exact here
        assert float(size.value({"a": a, "b": b})) == float(value)
    else:
        assert size.value({"a": a, "b": b}) == (bool(value) if value in (sympy.true, sympy.false) else value)
    assert parse(str(size)) == size


def test_symbols_take_the_users_names():
    assert str(size_of(2 * A + B, {"a": "batch"})) == "b + 2*batch"


def test_a_function_without_a_translation_is_refused_by_name():
    with pytest.raises(CaptureError, match=r"the size sin\(a\) uses sin, which has no translation"):
        size_of(sympy.sin(A))
