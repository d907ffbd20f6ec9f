"""Constants whose numbers or shape depend on the sizes of a graph, written as nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.graph.builder import Builder
from ontrain.graph.origins import Origins
from ontrain.graph.size_arithmetic import SizeArithmetic, dimension_of_inputs
from ontrain.sizes import Size, Sizes, fit

__all__ = ["DiffersError", "VaryingConstants", "dimension"]

Array = np.ndarray[Any, Any]

_ELEMENTS = 64
"""Up to how many elements of a constant may each depend on the sizes in its own way."""


class DiffersError(Exception):
    """What no polynomial describes; the message says what it is."""


def dimension(size: Size | None) -> int | str | None:
    """Return a dimension as a shape states it: a number, a symbol, a sum of products like "64*batch", or unknown."""
    if size is None or not size.is_dimension:
        return None
    return str(size) if size.as_number is None else int(size.as_number)


class VaryingConstants:
    """Writes constants given by their values at a few sizes.

    Args:
        op: builder of the general graph.
        points: the sizes.
        origins: knows what constants were made of.
    """

    def __init__(self, op: Builder, points: Sequence[Sizes], origins: Origins) -> None:
        self._op, self._points, self._origins = op, points, origins
        self._sizes = SizeArithmetic(dimension_of_inputs)
        self._written: dict[ir.Value, ir.Value] = {}

    def write(self, arrays: Sequence[Array]) -> ir.Value:
        """Return the constant that is each of the arrays at its sizes.

        Raises:
            DiffersError: it cannot be told what it is at other sizes.
        """
        first = arrays[0]
        if any(a.ndim != first.ndim or a.dtype != first.dtype for a in arrays):
            raise DiffersError("a constant has another rank or type at another size")
        if any(a.shape != first.shape for a in arrays):
            return self._stretched(arrays)
        if first.size > _ELEMENTS:
            return self._recomputed(arrays)
        elements = [self._number(values) for values in zip(*(a.ravel().tolist() for a in arrays), strict=True)]
        dtype = ir.DataType.from_numpy(first.dtype)
        parts = [self._op.Cast(element, to=dtype) for element in elements]
        joined = parts[0] if len(parts) == 1 else self._op.Concat(*parts, axis=0)
        shaped: ir.Value = joined if first.ndim == 1 else self._op.Reshape(joined, np.array(first.shape, np.int64))
        return shaped

    def _stretched(self, arrays: Sequence[Array]) -> ir.Value:
        """A constant whose shape varies: its first entry along the axes that repeat, and perhaps a count along one."""
        rank = arrays[0].ndim
        repeats = [all(_repeats(a, axis) for a in arrays) for axis in range(rank)]
        cores = [a[tuple(slice(0, 1) if r else slice(None) for r in repeats)] for a in arrays]
        counted = [axis for axis in range(rank) if cores[0].shape[axis] > 1 and not repeats[axis]]
        if all(core.shape == cores[0].shape for core in cores):
            same = all(np.array_equal(core, cores[0]) for core in cores)
            core = self._op.const(cores[0]) if same else self.write(cores)
        elif len(counted) == 1 and all(_counts(core, cores[0]) for core in cores):
            core = self._count(cores, counted[0])
        else:
            return self._recomputed(arrays)
        if not any(r and a.shape[i] > 1 for i, r in enumerate(repeats) for a in arrays):
            return core
        sizes = zip(*(a.shape for a in arrays), strict=True)
        expanded: ir.Value = self._op.Expand(core, self._vector([self._fitted(lengths) for lengths in sizes]))
        return expanded

    def _count(self, cores: Sequence[Array], axis: int) -> ir.Value:
        """start, start + step, … along one axis."""
        first = cores[0].ravel()
        start, step = int(first[0]), int(first[1] - first[0])
        length = self._op.Squeeze(self._size(self._fitted([core.size for core in cores])))
        end = self._op.Add(self._op.Mul(length, step), start)
        counted: ir.Value = self._op.Range(np.array(start, np.int64), end, np.array(step, np.int64))
        counted = self._op.Cast(counted, to=ir.DataType.from_numpy(cores[0].dtype))
        shape = [-1 if i == axis else 1 for i in range(cores[0].ndim)]
        return counted if len(shape) == 1 else self._op.Reshape(counted, np.array(shape, np.int64))

    def _recomputed(self, arrays: Sequence[Array]) -> ir.Value:
        """A constant that the symbolic graph computes from shapes."""
        origin = self._origins.find(arrays)
        if origin is None:
            raise DiffersError("the entries of a constant depend on the size")
        if origin not in self._written:
            constant = self._op.identity(self._origins.write(self._op, self._op.graph.inputs, origin))
            sizes = zip(*(a.shape for a in arrays), strict=True)
            constant.shape = ir.Shape([dimension(fit(lengths, self._points)) for lengths in sizes])
            self._written[origin] = constant
        return self._written[origin]

    def _number(self, values: Sequence[float]) -> ir.Value:
        """A number as a vector of one element: int64 if all values are whole, else double or its reciprocal."""
        size = fit(values, self._points)
        if size is not None:
            return self._size(size)
        inverse = fit([1 / v for v in values], self._points) if all(values) else None
        if inverse is None or isinstance(values[0], int):
            raise DiffersError(f"{', '.join(map(str, values))} is no polynomial in the sizes")
        reciprocal: ir.Value = self._op.Reciprocal(self._op.Cast(self._size(inverse), to=ir.DataType.DOUBLE))
        return reciprocal

    def _fitted(self, values: Sequence[int]) -> Size:
        size = fit(values, self._points)
        if size is None:
            raise DiffersError(f"{', '.join(map(str, values))} is no polynomial in the sizes")
        return size

    def _size(self, size: Size) -> ir.Value:
        return self._sizes.value(self._op, size)

    def _vector(self, sizes: Sequence[Size]) -> ir.Value:
        elements = [self._size(size) for size in sizes]
        vector: ir.Value = elements[0] if len(elements) == 1 else self._op.Concat(*elements, axis=0)
        return vector


def _repeats(array: Array, axis: int) -> bool:
    """Whether all entries along an axis are the same."""
    return array.shape[axis] > 0 and bool((array == array.take([0], axis)).all())


def _counts(array: Array, like: Array) -> bool:
    """Whether the entries are whole numbers that go on from the first in the steps of `like`."""
    flat, first = array.ravel(), like.ravel()
    if array.dtype.kind not in "if" or array.size < 2 or not np.isfinite(first[:2]).all() or (first[:2] % 1).any():
        return False
    return bool((flat == first[0] + np.arange(flat.size) * (first[1] - first[0])).all())
