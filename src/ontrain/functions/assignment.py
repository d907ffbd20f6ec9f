"""Assignments of least cost between the rows and columns of a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder, repeat
from ontrain.operators import Value, static_dims

__all__: list[str] = []

_INT64 = ir.DataType.INT64


def _types(inputs: Sequence[Any], **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    rows, columns = list(inputs[0].shape)
    known = isinstance(rows, int) and isinstance(columns, int)
    return [(_INT64, ir.Shape([min(rows, columns) if known else None]))] * 2


@composite("LinearSumAssignment", infer=_types)
def linear_sum_assignment(op: Builder, cost: Value, *, maximize: int = 0) -> tuple[Value, Value]:
    """Pairs of rows and columns of cost [N, M] whose costs add up to the least, or with `maximize` to the most.

    Rows [min(N, M)] in ascending order and their columns, int64. Each row and each column occurs at most once.
    Of several assignments of equal cost it is any.

    Source: scipy.optimize.linear_sum_assignment; Crouse, On implementing 2D rectangular assignment algorithms, 2016.
    """
    rows, columns = static_dims(cost)
    if not min(rows, columns):
        nothing = op.const(np.zeros(0, np.int64))
        return op.Identity(nothing), op.Identity(nothing)
    cost = op.Neg(cost) if maximize else cost
    if rows > columns:
        owners = _columns(op, op.Transpose(cost, perm=[1, 0]))  # of each column the row
        ascending, order = op.TopK(owners, [columns], axis=0, largest=0, sorted=1, outputs=2)
        return ascending, order
    return op.Identity(op.const(np.arange(rows))), _columns(op, cost)


def _columns(op: Builder, cost: Value) -> Value:
    """The column of each row, [N], of no more rows than columns: one row after the other, by a shortest path.

    A path leads from a row to a column, from there to the row that has the column, and so on. Potentials of rows and
    columns keep all lengths from being negative.
    """
    n, m = static_dims(cost)
    initial = [
        op.Expand(op.const(0.0, cost.dtype), [n]), op.Expand(op.const(0.0, cost.dtype), [m]),
        op.Expand(op.const(-1, _INT64), [n]), op.Expand(op.const(-1, _INT64), [m]),
    ]  # fmt: skip

    def row(
        op: Builder, at: Value, states: Sequence[Any], _: Sequence[Any], captured: Sequence[Any]
    ) -> tuple[None, list[Value], list[Value]]:
        u, v, column_of, row_of = states
        sink, length, seen, lengths, before = _shortest(op, at, u, v, row_of, captured[0])
        rows = op.const(np.arange(n))
        # Rows on the tree other than this one are those that seen columns belong to.
        column = op.Max(column_of, np.int64(0))
        on_tree = op.And(op.GreaterOrEqual(column_of, np.int64(0)), op.Gather(seen, column))
        u = u + op.Where(on_tree, length - op.Gather(lengths, column), op.const(0.0, u.dtype))
        u = u + op.Where(op.Equal(rows, at), length, op.const(0.0, u.dtype))
        v = v - op.Where(seen, length - lengths, op.const(0.0, v.dtype))
        column_of, row_of = _augmented(op, at, sink, before, column_of, row_of)
        return None, [u, v, column_of, row_of], []

    (_, _, column_of, _), _ = repeat(op, row, trip=n, carried=initial, captured=[cost])
    return column_of


def _shortest(op: Builder, start: Value, u: Value, v: Value, row_of: Value, cost: Value) -> tuple[Value, ...]:
    """The free column that is nearest to a row, its distance, the columns nearer by or as far, all distances, and ways.

    The way to a column is the row that it was reached from.
    """
    n, m = static_dims(cost)
    no, far = op.const(0, _INT64), op.const(np.inf, cost.dtype)
    initial = [
        op.Identity(start), op.const(-1, _INT64), op.const(0.0, cost.dtype), op.Expand(op.const(False), [m]),
        op.Expand(far, [m]), op.Expand(no, [m]),
    ]  # fmt: skip

    def step(
        op: Builder, _: Value, states: Sequence[Any], __: Sequence[Any], captured: Sequence[Any]
    ) -> tuple[None, list[Value], list[Value]]:
        row, sink, length, seen, lengths, before = states
        cost, u, v, row_of = captured
        going = op.Less(sink, op.const(0, _INT64))
        by = op.Gather(cost, row, axis=0) - op.Gather(u, row) - v + length
        nearer = op.And(going, op.And(op.Not(seen), op.Less(by, lengths)))
        lengths, before = op.Where(nearer, by, lengths), op.Where(nearer, row, before)
        open_lengths = op.Where(seen, op.const(np.inf, lengths.dtype), lengths)
        nearest = op.ArgMin(open_lengths, axis=0, keepdims=0)
        owner = op.Gather(row_of, nearest)
        free = op.Less(owner, op.const(0, _INT64))
        here = op.Equal(op.const(np.arange(m)), nearest)
        return (
            None,
            [
                op.Where(op.And(going, op.Not(free)), owner, row),
                op.Where(op.And(going, free), nearest, sink),
                op.Where(going, op.Gather(open_lengths, nearest), length),
                op.Or(seen, op.And(going, here)),
                lengths,
                before,
            ],
            [],
        )

    (_, sink, length, seen, lengths, before), _ = repeat(
        op, step, trip=n, carried=initial, captured=[cost, u, v, row_of]
    )
    return sink, length, seen, lengths, before


def _augmented(
    op: Builder, start: Value, sink: Value, before: Value, column_of: Value, row_of: Value
) -> tuple[Value, Value]:
    """The assignment with each column on the way back from a free one given to the row that it was reached from."""
    (n,), (m,) = static_dims(column_of), static_dims(row_of)

    def back(
        op: Builder, _: Value, states: Sequence[Any], __: Sequence[Any], captured: Sequence[Any]
    ) -> tuple[None, list[Value], list[Value]]:
        column, column_of, row_of = states
        before, start = captured
        going = op.GreaterOrEqual(column, op.const(0, _INT64))
        place = op.Max(column, op.const(0, _INT64))
        row = op.Gather(before, place)
        last = op.Gather(column_of, row)
        mine = op.And(going, op.Equal(op.const(np.arange(n)), row))
        its = op.And(going, op.Equal(op.const(np.arange(m)), place))
        ends = op.Equal(row, start)
        after = op.Where(op.And(going, op.Not(ends)), last, op.const(-1, _INT64))
        return None, [after, op.Where(mine, column, column_of), op.Where(its, row, row_of)], []

    (_, column_of, row_of), _ = repeat(op, back, trip=n, carried=[sink, column_of, row_of], captured=[before, start])
    return column_of, row_of
