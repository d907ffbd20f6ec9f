"""Sparse matrices as the places and values that they are of: forward makes them, and multiplies by them.

    a = torch.sparse_coo_tensor(indices, values, (n, m))    →   kept apart: rows, columns, values
    torch.sparse.mm(a, b)                                   →   rows of b, scaled, added up at their rows of a
    torch.sparse.mm(a, c) of two sparse ones                →   kept apart: both, multiplied one after the other

Like a complex tensor, a sparse one lives inside a forward and never crosses the border of a graph: forward makes it,
or it is made of the parts of one that forward was given (`capture/sparse_state.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture.aten.places import from_start
from ontrain.capture.aten.registry import Handler, Translation, entered, operator_name
from ontrain.capture.context import AtenBuilder, Dim
from ontrain.capture.ways_out import BROKEN
from ontrain.internals import OpOverload
from ontrain.operators import Value

__all__ = ["Matrix", "Product", "Sparse", "is_sparse", "sparse_matrices", "translate_sparse"]


@dataclass(frozen=True)
class Sparse:
    """A matrix of mostly zeros; values at one place add up.

    Attributes:
        rows: [N], int64.
        columns: [N], int64.
        values: [N].
        once: whether each place occurs once, in the order of rows and then of columns.
        merged: whether torch has merged values at one place; they are still apart here, in the order they came in.
    """

    rows: Value
    columns: Value
    values: Value
    once: bool = False
    merged: bool = False

    def transposed(self) -> Sparse:
        """Return the matrix with rows and columns changed for each other."""
        return Sparse(self.columns, self.rows, self.values)


@dataclass(frozen=True)
class Product:
    """A product of two sparse matrices, which is multiplied by what is on its right before what is on its left.

    Attributes:
        left, right: the factors.
        inner: the columns of the left factor, rows of the right one.
    """

    left: Sparse | Product
    right: Sparse | Product
    inner: Dim

    def transposed(self) -> Product:
        """Return the product of both, transposed, in the other order."""
        return Product(self.right.transposed(), self.left.transposed(), self.inner)


Matrix = Sparse | Product
"""A sparse matrix, as its parts or as its factors."""

sparse_matrices: dict[str, Handler] = {}
"""Translations of operators that take or give sparse matrices, by name without overload."""


def _on_sparse(*names: str) -> Callable[[Translation], Translation]:
    return entered(sparse_matrices, *names)


def is_sparse(value: object) -> bool:
    """Whether a value, a tensor as torch sees it, or one in a list of them is sparse."""
    if isinstance(value, list | tuple):
        return any(is_sparse(item) for item in value)
    return isinstance(value, Sparse | Product) or (
        isinstance(value, torch.Tensor) and value.layout is not torch.strided
    )


def translate_sparse(op: AtenBuilder, target: object, args: Sequence[Any], named: dict[str, Any]) -> Any:
    """Translate a call that takes or gives sparse matrices.

    Raises:
        CaptureError: the operator, or the layout, is known for dense tensors only.
    """
    assert isinstance(target, OpOverload), target
    handler = sparse_matrices.get(operator_name(target))
    if handler is None:
        raise op.refuse(
            f"{target} of sparse tensors",
            "a graph has matrices of torch.sparse_coo_tensor made in forward, and their products with dense ones",
            "compute with the values before they are put into the matrix, or with its to_dense()",
        )
    return handler(op, *args, **named)


@_on_sparse("_sparse_coo_tensor_with_dims_and_tensors")
def with_dims(
    op: AtenBuilder, sparse_dim: int, dense_dim: int, size: Sequence[Dim], indices: Value, values: Value,
    *, is_coalesced: bool | None = None, **_: object,
) -> Sparse:  # fmt: skip
    return coo_tensor(op, indices, values, size, is_coalesced=is_coalesced)


@_on_sparse("sparse_coo_tensor", "_sparse_coo_tensor_unsafe")
def coo_tensor(
    op: AtenBuilder, indices: Value, values: Value, size: Sequence[Dim], *, is_coalesced: bool | None = None,
    **_: object,
) -> Sparse:  # fmt: skip
    if len(size) != 2 or (values.shape is not None and len(values.shape) != 1):
        raise op.refuse(
            f"a sparse tensor of {len(size)} dimensions", "a graph has sparse matrices of numbers",
            "flatten it to a matrix whose values are one vector",
        )  # fmt: skip
    rows, columns = (from_start(op, op.Gather(indices, i, axis=0)) for i in (0, 1))
    return Sparse(rows, columns, op.cast(values, op.dtype), once=bool(is_coalesced))


@_on_sparse("clone", "alias")
def same(op: AtenBuilder, x: Matrix, **_: object) -> Matrix:
    return x


@_on_sparse("_coalesce", "coalesce")
def coalesced(op: AtenBuilder, x: Matrix) -> Matrix:
    return x if isinstance(x, Product) or x.once else replace(x, merged=True)


@_on_sparse("indices", "_indices")
def places(op: AtenBuilder, x: Matrix) -> Value:
    x = _with_places(op, x)
    return op.Concat(op.Unsqueeze(x.rows, [0]), op.Unsqueeze(x.columns, [0]), axis=0)


@_on_sparse("values", "_values")
def values_of(op: AtenBuilder, x: Matrix) -> Value:
    return _with_places(op, x).values


@_on_sparse("sum")
def total(op: AtenBuilder, x: Matrix, axes: Sequence[int] | None = None, **_: object) -> Value:
    if axes is not None and len({axis % 2 for axis in axes}) == 1:
        raise op.refuse(*_SPARSE_VECTOR)
    if isinstance(x, Product):
        raise op.refuse(
            "the sum of a product of two sparse matrices", "the places of the product follow from those of both",
            "multiply it by a vector of ones, and sum what comes of it",
        )  # fmt: skip
    return op.ReduceSum(op.cast(x.values, op.dtype), keepdims=0)


_SPARSE_VECTOR = (
    "the sum of a sparse matrix over one dimension", "it is a sparse vector, and a graph has sparse matrices",
    "multiply the matrix by a vector of ones: (a @ ones) sums each row, (a.t() @ ones) each column",
)  # fmt: skip


@_on_sparse("_sparse_sum")
def sparse_sum(op: AtenBuilder, x: Matrix, *_: object, **__: object) -> Value:
    raise op.refuse(*_SPARSE_VECTOR)


@_on_sparse("_sparse_softmax", "_sparse_log_softmax")
def softmax(op: AtenBuilder, x: Matrix, axis: int, *_: object, **__: object) -> Sparse:
    """The softmax over the places of a row or column that the matrix has; values at one place count as their sum."""
    if isinstance(x, Product):
        raise op.refuse(
            "the softmax of a product of two sparse matrices", "its places follow from the places of both",
            "take the product's to_dense(), and its softmax where that is not zero",
        )  # fmt: skip
    shape = op.input_shape(0)
    line, lines = (x.rows, shape[0]) if axis % 2 else (x.columns, shape[1])
    values, shares = op.cast(x.values, op.dtype), None
    if not x.once:
        places = op.Concat(op.Unsqueeze(x.rows, [1]), op.Unsqueeze(x.columns, [1]), axis=1)
        counted = op.ScatterND(_zeros(op, shape), places, op.Expand(op.const(1, op.dtype), op.Shape(values)),
                               reduction="add")  # fmt: skip
        shares = op.GatherND(counted, places)
        values = op.GatherND(_dense(op, replace(x, values=values), shape), places)
    least = op.expand(op.const(-np.inf, op.dtype), [lines], [])
    highest = op.composite("Detach", op.ScatterElements(least, line, values, axis=0, reduction="max"))
    values = values - op.Gather(highest, line, axis=0)
    powers = op.Exp(values) if shares is None else op.Exp(values) / shares
    sums = op.Gather(op.ScatterElements(_zeros(op, [lines]), line, powers, axis=0, reduction="add"), line, axis=0)
    if _called(op) == "_sparse_softmax":
        return replace(x, values=powers / sums, merged=not x.once)
    logarithms = values - op.Log(sums)
    return replace(x, values=logarithms if shares is None else logarithms / shares, merged=not x.once)


def _with_places(op: AtenBuilder, x: Matrix) -> Sparse:
    if isinstance(x, Product):
        raise op.refuse(
            "the places of a product of two sparse matrices", "they follow from the places of both",
            "multiply the product by a dense matrix, or take its to_dense()",
        )  # fmt: skip
    if x.merged:
        raise op.refuse(
            "the places of a coalesced matrix", "how many there are follows from the places that it was made of",
            "coalesce the matrix before the call and hand it in, or compute with the values that it is made of; "
            f"or {BROKEN}",
        )  # fmt: skip
    if op.shape[-1] == 0 and list(x.values.shape) != [0]:  # torch's tracer takes what is computed for empty
        raise op.refuse(
            "the places of a sparse matrix that forward computes", "torch does not say how many there are",
            f"compute with the places and values that it is made of; or {BROKEN}",
        )  # fmt: skip
    return x


@_on_sparse("t", "transpose", "numpy_T", "mT")
def transposed(op: AtenBuilder, x: Matrix, first: int = 0, second: int = 1) -> Matrix:
    return x if first % 2 == second % 2 else x.transposed()


@_on_sparse("permute")
def permuted(op: AtenBuilder, x: Matrix, axes: Sequence[int]) -> Matrix:
    return x.transposed() if axes[0] % 2 else x


@_on_sparse("mul", "div")
def scaled(op: AtenBuilder, x: Matrix, factor: Any) -> Matrix:
    if isinstance(x, Product):
        return replace(x, left=scaled(op, x.left, factor))
    number = isinstance(factor, int | float) or not (isinstance(factor, Sparse | Product) or factor.shape)
    if not isinstance(x, Sparse) or not number:
        raise op.refuse(
            "a sparse matrix times a tensor, element by element", "only a number scales one here",
            "multiply its values before they are put into the matrix",
        )  # fmt: skip
    factor = op.cast(factor, x.values.dtype)
    divides = _called(op) == "div"
    return replace(x, values=x.values / factor if divides else x.values * factor)


@_on_sparse("add", "sub")
def added(op: AtenBuilder, x: Any, y: Any, *, alpha: Any = 1) -> Sparse | Value:
    factor = -alpha if _called(op) == "sub" else alpha
    # The other way round, a dense tensor added to a sparse one, is nothing that torch has.
    if isinstance(x, ir.Value) and list(op.input_shape(0)) == list(op.shape):
        return x + _times(op, _dense(op, y, op.shape), factor)
    if isinstance(x, Product) or isinstance(y, Product):
        raise op.refuse(
            "a sum with a product of two sparse matrices", "the places of the product follow from those of both",
            "multiply each by the dense matrix and add the results",
        )  # fmt: skip
    if not (isinstance(x, Sparse) and isinstance(y, Sparse)):
        raise op.refuse(
            "the sum of a sparse matrix and a dense tensor of another shape", "it is dense",
            "add the tensor to the product, or to the matrix's to_dense()",
        )  # fmt: skip
    values = _times(op, y.values, factor)
    rows, columns = op.Concat(x.rows, y.rows, axis=0), op.Concat(x.columns, y.columns, axis=0)
    return Sparse(rows, columns, op.Concat(x.values, values, axis=0))


def _times(op: AtenBuilder, values: Value, factor: Any) -> Value:
    return values if isinstance(factor, int) and factor == 1 else values * op.cast(factor, values.dtype)


@_on_sparse("neg")
def negative(op: AtenBuilder, x: Matrix) -> Matrix:
    return replace(x, left=negative(op, x.left)) if isinstance(x, Product) else replace(x, values=-x.values)


@_on_sparse("detach")
def detached(op: AtenBuilder, x: Matrix) -> Matrix:
    if isinstance(x, Product):
        return replace(x, left=detached(op, x.left), right=detached(op, x.right))
    return replace(x, values=op.composite("Detach", x.values))


@_on_sparse("_to_dense", "to_dense")
def dense(op: AtenBuilder, x: Matrix, *_: object, **__: object) -> Value:
    return _dense(op, x, op.shape)


def _dense(op: AtenBuilder, x: Matrix, shape: Sequence[Dim]) -> Value:
    if isinstance(x, Product):
        return _product(op, x.left, _dense(op, x.right, [x.inner, shape[1]]), shape)
    places = op.Concat(op.Unsqueeze(x.rows, [1]), op.Unsqueeze(x.columns, [1]), axis=1)
    return op.ScatterND(_zeros(op, shape), places, x.values, reduction="add")


@_on_sparse("_sparse_mm", "mm")
def mm(op: AtenBuilder, a: Matrix | Value, b: Matrix | Value, *_: object) -> Matrix | Value:
    if isinstance(a, Sparse | Product):
        if isinstance(b, Sparse | Product):
            return Product(a, b, op.input_shape(1)[0])
        return _product(op, a, b, op.shape)
    assert isinstance(b, Sparse | Product)
    return op.Transpose(_product(op, b.transposed(), op.Transpose(a, perm=[1, 0]), op.shape[::-1]), perm=[1, 0])


@_on_sparse("linear")
def linear(op: AtenBuilder, x: Matrix, weight: Value, bias: Value | None = None) -> Value:
    product = _product(op, x, op.Transpose(weight, perm=[1, 0]), op.shape)
    return product if bias is None else product + bias


@_on_sparse("matmul")
def matmul(op: AtenBuilder, a: Matrix | Value, b: Matrix | Value) -> Matrix | Value:
    if len(op.shape) == 2:
        return mm(op, a, b)
    if isinstance(a, Sparse | Product) and isinstance(b, ir.Value) and len(op.input_shape(1)) == 1:
        return mv(op, a, b)
    raise op.refuse(
        "a product of a sparse matrix and a batch", "a graph has its products with a matrix and with a vector",
        "multiply by one matrix: a @ x.flatten(1)",
    )  # fmt: skip


@_on_sparse("mv")
def mv(op: AtenBuilder, a: Matrix, b: Value) -> Value:
    return op.Squeeze(_product(op, a, op.Unsqueeze(b, [1]), [*op.shape, 1]), [1])


@_on_sparse("_sparse_addmm", "addmm")
def addmm(op: AtenBuilder, x: Value, a: Matrix | Value, b: Matrix | Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    product = mm(op, a, b)
    if not isinstance(product, ir.Value):
        raise op.refuse("a sum of sparse matrices by addmm", "it is sparse", "write it as x + a @ b")
    product = product if alpha == 1 else product * op.cast(alpha, op.dtype)
    if beta == 0:
        return product
    return product + (x if beta == 1 else x * op.cast(beta, op.dtype))


def _called(op: AtenBuilder) -> str:
    assert isinstance(op.node.target, OpOverload)
    return operator_name(op.node.target)


def _product(op: AtenBuilder, a: Matrix, b: Value, shape: Sequence[Dim]) -> Value:
    """a @ b, of b [m, k]; a row of the result is the sum of rows of b."""
    if isinstance(a, Product):
        return _product(op, a.left, _product(op, a.right, b, [a.inner, shape[1]]), shape)
    terms = op.Gather(b, a.columns, axis=0) * op.Unsqueeze(a.values, [1])
    rows = op.Expand(op.Unsqueeze(a.rows, [1]), op.Shape(terms))
    return op.ScatterElements(_zeros(op, shape), rows, terms, axis=0, reduction="add")


def _zeros(op: AtenBuilder, shape: Sequence[Dim]) -> Value:
    return op.expand(op.const(0, op.dtype), shape, [])
