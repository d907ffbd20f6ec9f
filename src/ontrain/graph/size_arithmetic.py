"""Polynomials in the sizes of a graph's inputs, as nodes of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from ontrain.graph.builder import Builder
from ontrain.graph.polynomials import Polynomial

__all__ = ["SizeArithmetic"]

_NEAR = Fraction(1, 10**6)


class SizeArithmetic:
    """Appends what computes polynomials; each polynomial and each size once.

    Args:
        op: builder of a graph whose inputs have symbolic dimensions.
    """

    def __init__(self, op: Builder) -> None:
        self._op = op
        self._made: dict[Polynomial, ir.Value] = {}
        self._sizes: dict[str, ir.Value] = {}

    def vector(self, elements: Sequence[Polynomial]) -> ir.Value:
        """Return the polynomials as a vector."""
        parts = [self.value(one) for one in elements]
        made: ir.Value = parts[0] if len(parts) == 1 else self._op.Concat(*parts, axis=0)
        return made

    def value(self, polynomial: Polynomial) -> ir.Value:
        """Return the polynomial as a vector of one element: int64 if its coefficients are whole, else float32."""
        if polynomial not in self._made:
            terms = [self._term(key, c) for key, c in polynomial]
            floats = any(term.dtype == ir.DataType.FLOAT for term in terms)
            terms = [self._op.Cast(term, to=ir.DataType.FLOAT) if floats else term for term in terms]
            total = terms[0] if terms else self._op.const(np.zeros(1, np.int64))
            for term in terms[1:]:
                total = self._op.Add(total, term)
            self._made[polynomial] = total
        return self._made[polynomial]

    def _term(self, key: tuple[str, ...], coefficient: Fraction) -> ir.Value:
        size: ir.Value | None = None
        for symbol in key:
            one = self._size(symbol)
            size = one if size is None else self._op.Mul(size, one)
        # A multiple that is read off floats lies a hair beside its whole number.
        near = Fraction(round(coefficient))
        whole = abs(coefficient - near) <= abs(coefficient) * _NEAR
        if not whole and size is not None:
            size = self._op.Cast(size, to=ir.DataType.FLOAT)
        factor = np.array([int(near)], np.int64) if whole else np.array([float(coefficient)], np.float32)
        if size is None:
            return self._op.const(factor)
        made: ir.Value = size if whole and near == 1 else self._op.Mul(size, factor)
        return made

    def _size(self, symbol: str) -> ir.Value:
        """A dimension as a vector of one element, from the first input that has it."""
        if symbol not in self._sizes:
            value, axis = next(
                (value, axis)
                for value in self._op.graph.inputs
                for axis, dim in enumerate(value.shape or ())
                if not isinstance(dim, int) and dim.value == symbol
            )
            self._sizes[symbol] = self._op.Shape(value, start=axis, end=axis + 1)
        return self._sizes[symbol]
