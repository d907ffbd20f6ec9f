"""What constants of a few graphs are in terms of their sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ontrain.sizes import Features, NumberRule, UnfitError

__all__ = ["ConstantRule", "constant_rule", "same"]

Array = np.ndarray[Any, Any]
ConstantRule = Callable[[Sequence[int]], Array]
"""rule(sizes): the constant at these sizes; raises UnfitError where the graphs that were seen do not say."""

_PLACES = 4096
"""Up to how many places of the axes that do not vary may each count in their own way."""
_ELEMENTS = 1 << 16
"""Up to how many elements of a constant may each depend on the sizes in its own way."""


def constant_rule(arrays: Sequence[Array], features: Features) -> ConstantRule:
    """Return what a constant is at any sizes, from what it is at the samples.

    It is the same everywhere, or its elements are polynomials; or it is the corner of a larger one, seen along the
    sizes that its axes consist of; or it counts along them.

    Raises:
        UnfitError: none of these.
    """
    first = arrays[0]
    if any(a.ndim != first.ndim or a.dtype != first.dtype for a in arrays):
        raise UnfitError("a constant has another rank or type")
    if all(a.shape == first.shape for a in arrays):
        return _elementwise(arrays, features)
    shapes = features.rule(np.array([a.shape for a in arrays], np.int64))
    if all(a.size and (a == first.flat[0]).all() for a in arrays) and first.size:
        return lambda sizes: np.full(tuple(shapes.at(sizes).tolist()), first.flat[0])
    for split in _splits(np.array([a.shape for a in arrays]), features):
        views = [a.reshape(split.shape(a.shape, sizes)) for a, sizes in zip(arrays, features.samples, strict=True)]
        for rule in (_count, _corner):
            inner = rule(views, features)
            if inner is not None:
                return split.rule(shapes, inner)
    raise UnfitError("the entries of a constant depend on the size")


def same(a: Array, b: Array) -> bool:
    """Whether two arrays are of one type and shape and hold the same."""
    return a is b or (a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


def _elementwise(arrays: Sequence[Array], features: Features) -> ConstantRule:
    first = arrays[0]
    if first.size > _ELEMENTS or first.dtype.kind not in "iuf":
        raise UnfitError("the entries of a constant depend on the size")
    shape, dtype = first.shape, first.dtype
    stacked = np.stack([a.ravel() for a in arrays])
    if dtype.kind in "iu":
        rule = features.rule(stacked.astype(np.int64))
        return lambda sizes: rule.at(sizes).astype(dtype).reshape(shape)
    columns = [features.fraction(stacked[:, i]) for i in range(stacked.shape[1])]
    return lambda sizes: np.array([column(sizes) for column in columns]).astype(dtype).reshape(shape)


class _Split:
    """Axes seen as products: an axis of 32·length elements as [32, length].

    Args:
        factors: for each axis the number of a size and what it is multiplied by in front of it; None leaves the axis.
    """

    def __init__(self, factors: Sequence[int | None]) -> None:
        self._factors = factors

    def shape(self, shape: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Return the longer shape at some sizes."""
        longer: list[int] = []
        for size, factor in zip(shape, self._factors, strict=True):
            longer += [int(size)] if factor is None else [int(size) // int(sizes[factor]), int(sizes[factor])]
        return longer

    def rule(self, shapes: NumberRule, inner: Callable[[Sequence[int], Sequence[int]], Array]) -> ConstantRule:
        """Return the rule of the constant, from one that is given the sizes and the longer shape."""

        def constant(sizes: Sequence[int]) -> Array:
            shape = shapes.at(sizes).tolist()
            return np.ascontiguousarray(inner(sizes, self.shape(shape, sizes))).reshape(shape)

        return constant


def _splits(shapes: Array, features: Features) -> list[_Split]:
    """The ways to see the axes, the plainest first."""
    choices: list[list[int | None]] = []
    for axis in range(shapes.shape[1]):
        along: list[int | None] = [None]
        for i in features.varying:
            counts, rest = np.divmod(shapes[:, axis], features.samples[:, i])
            if not rest.any() and (counts > 1).all():
                along.append(i)
        choices.append(along)
    return [_Split(factors) for factors in itertools.product(*choices)]


def _corner(views: Sequence[Array], features: Features) -> Callable[[Sequence[int], Sequence[int]], Array] | None:
    """The corner of one array, of which each view shows a part."""
    whole = np.zeros(np.max([view.shape for view in views], 0), views[0].dtype)
    known = np.zeros(whole.shape, bool)
    for view in views:
        corner = tuple(slice(n) for n in view.shape)
        if (whole[corner] != view)[known[corner]].any():
            return None
        whole[corner], known[corner] = view, True

    def rule(sizes: Sequence[int], shape: Sequence[int]) -> Array:
        corner = tuple(slice(n) for n in shape)
        if any(n > m for n, m in zip(shape, whole.shape, strict=True)) or not known[corner].all():
            raise UnfitError("a constant is larger than any that was seen")
        return whole[corner]

    return rule


def _count(views: Sequence[Array], features: Features) -> Callable[[Sequence[int], Sequence[int]], Array] | None:
    """start + Σ step·index along the axes that vary, for each place of the others: start and steps are polynomials."""
    dtype, rank = views[0].dtype, views[0].ndim
    along = [a for a in range(rank) if any(view.shape[a] != views[0].shape[a] for view in views)]
    others = [a for a in range(rank) if a not in along]
    order, fixed = [*others, *along], [views[0].shape[a] for a in others]
    if dtype.kind not in "iu" or any(0 in view.shape for view in views) or np.prod(fixed) > _PLACES:
        return None
    coefficients = []
    for view in views:
        grids = view.transpose(order).reshape(-1, *(view.shape[a] for a in along)).astype(np.int64)
        flat = grids.reshape(len(grids), -1)
        strides = [int(np.prod(grids.shape[axis + 2 :])) for axis in range(len(along))]
        steps = [
            flat[:, stride] - flat[:, 0] if grids.shape[axis + 1] > 1 else 0 * flat[:, 0]
            for axis, stride in enumerate(strides)
        ]
        coefficients.append(np.stack([flat[:, 0], *steps], 1))
        if not np.array_equal(grids, _grids(coefficients[-1], grids.shape[1:])):
            return None
    try:
        rule = features.rule(np.stack([c.ravel() for c in coefficients]))
    except UnfitError:
        return None
    back = np.argsort(order)

    def counted(sizes: Sequence[int], shape: Sequence[int]) -> Array:
        longer = [shape[a] for a in along]
        grids = _grids(rule.at(sizes).reshape(-1, 1 + len(along)), longer)
        return grids.reshape([*fixed, *longer]).transpose(back).astype(dtype)

    return counted


def _grids(coefficients: Array, shape: Sequence[int]) -> Array:
    """For each row of coefficients, start and steps, an array of this shape."""
    lead = [-1, *[1] * len(shape)]
    total = np.broadcast_to(coefficients[:, 0].reshape(lead), (len(coefficients), *shape)).copy()
    for axis in range(len(shape)):
        index = np.arange(shape[axis]).reshape([-1 if a == axis + 1 else 1 for a in range(len(shape) + 1)])
        total += coefficients[:, axis + 1].reshape(lead) * index
    return total
