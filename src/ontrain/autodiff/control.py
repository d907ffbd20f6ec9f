"""Branches and loops with closed bodies (`ontrain.graph.control`).

The gradient of a loop is a loop that runs backwards over the states which the forward loop hands on, and computes each
iteration's body again from the state it began with and from its matrix products, which are handed on, too. What the
iterations add to the gradient of a weight they share is one product after the loop, over the rows of all of them. A
loop whose length depends on the data has no room for all this in a plan: its gradient runs the loop up to the iteration
it needs each time, which costs the square of the length.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.autodiff.driver import differentiate, reached_from
from ontrain.autodiff.op import Op
from ontrain.graph import (
    DOMAIN,
    Builder,
    choose,
    describe,
    draws_random,
    emit,
    inherit_source,
    is_float,
    iterate,
    static_dims,
    trace,
)
from ontrain.operators import gradient, record_of

__all__: list[str] = []


def _check_repeatable(op: Op, *graphs: ir.Graph) -> None:
    """The gradient computes a body a second time, where random numbers would come out otherwise."""
    for graph in graphs:
        node = draws_random(graph)
        if node is not None:
            raise op.refused(
                f"{describe(node)} inside draws random numbers, and the gradient would draw them again",
                "draw them outside and hand them in, or make the condition or length a constant",
            )


def _zeros(op: Builder, like: ir.Value) -> ir.Value:
    assert like.dtype is not None
    return op.const(np.zeros(static_dims(like), like.dtype.numpy()))


@gradient("If", domain=DOMAIN)
def branch(
    op: Op, dy: Any, cond: ir.Value, *captured: ir.Value, then_branch: ir.Graph, else_branch: ir.Graph
) -> list[Any]:
    """An If on the same condition, each branch the gradient of a branch; what a branch needs is computed again."""
    _check_repeatable(op, then_branch, else_branch)
    flowing = [i for i, adjoint in enumerate(op.dys) if adjoint is not None]
    wanted = [i for i in range(len(captured)) if op.wanted[1 + i]]
    k = len(captured)

    def gradients(graph: ir.Graph) -> Any:
        def write(inner: Builder, formals: list[ir.Value]) -> list[ir.Value]:
            outputs = emit(inner, graph, formals[:k])
            wrt = [formals[i] for i in wanted]
            grads = differentiate(inner, [(outputs[i], dy) for i, dy in zip(flowing, formals[k:], strict=True)], wrt)
            return [_zeros(inner, x) if grad is None else grad for grad, x in zip(grads, wrt, strict=True)]

        return write

    adjoints = [dy for dy in op.dys if dy is not None]
    with inherit_source(op.node, op.nodes):
        results = choose(op.builder, cond, gradients(then_branch), gradients(else_branch), [*captured, *adjoints])
    grads: list[Any] = [None] * (1 + k)
    for i, grad in zip(wanted, results, strict=True):
        grads[1 + i] = grad
    return grads


@gradient("Loop", domain=DOMAIN)
def loop(
    op: Op, dy: Any, trip: ir.Value, cond: ir.Value | None, *operands: ir.Value,
    body: ir.Graph, carried: int, scanned: int, reverse: int,
) -> list[Any]:  # fmt: skip
    """A loop in the opposite direction, see above; what every iteration reads gets the sum of what they give."""
    _check_repeatable(op, body)
    return _LoopGradient(op, trip, cond, operands, body, carried, scanned, bool(reverse)).adjoints()


@dataclass(frozen=True)
class _Factor:
    """A factor of an adjoint that is a matrix product in each iteration.

    Attributes:
        value: in the body; the transpose of the factor where `transposed`.
        row: which of the scanned inputs it is a row of; None for what the body computes.
    """

    value: ir.Value
    row: int | None
    transposed: bool


def _factors(
    grad: ir.Value, scanned: Mapping[ir.Value, int], outer: Collection[ir.Value]
) -> tuple[_Factor, _Factor] | None:
    """Both factors of an adjoint; None if it is no product of matrices that differ from one iteration to the next."""
    node = grad.producer()
    if node is None or not record_of(node).product or len(node.inputs) > 2:
        return None
    if node.attributes.get_float("alpha", 1.0) != 1.0:
        return None
    values = []
    for value, flag in zip(node.inputs, ("transA", "transB"), strict=True):
        if value is None or value.shape is None or len(value.shape) != 2:
            return None
        producer, transposed = value.producer(), bool(node.attributes.get_int(flag, 0))
        if producer is not None and producer.op_type == "Transpose":
            value, transposed = producer.inputs[0], not transposed
        if value is None or value in outer or value.const_value is not None:
            return None
        values.append(_Factor(value, scanned.get(value), transposed))
    return values[0], values[1]


def _over_all_rows(op: Builder, left: tuple[ir.Value, bool], right: tuple[ir.Value, bool]) -> ir.Value:
    """The sum over iterations of left · right, from stacked factors: one product of [K, T · N] and [T · N, M]."""
    (a, a_transposed), (b, b_transposed) = left, right
    t, *a_dims = static_dims(a)
    b_dims = static_dims(b)[1:]
    if a_transposed:
        a = op.Transpose(op.Reshape(a, [t * a_dims[0], a_dims[1]]), perm=[1, 0])
    else:
        a = op.Reshape(op.Transpose(a, perm=[1, 0, 2]), [a_dims[0], t * a_dims[1]])
    if b_transposed:
        b = op.Transpose(op.Reshape(op.Transpose(b, perm=[1, 0, 2]), [b_dims[0], t * b_dims[1]]), perm=[1, 0])
    else:
        b = op.Reshape(b, [t * b_dims[0], b_dims[1]])
    total: ir.Value = op.MatMul(a, b)
    return total


def _added(grads: Mapping[int, ir.Value], sums: Mapping[int, ir.Value], op: Builder) -> list[ir.Value]:
    return [old if i not in grads else op.Add(old, grads[i]) for i, old in sums.items()]


class _LoopGradient:
    """One use of the rule of Loop.

    Attributes:
        states, rows, outer: positions of the operands that take an adjoint: carried, scanned, captured.
    """

    def __init__(
        self, op: Op, trip: ir.Value, cond: ir.Value | None, operands: Sequence[ir.Value], body: ir.Graph, carried: int,
        scanned: int, reverse: bool,
    ) -> None:  # fmt: skip
        self.op, self.trip, self.cond, self.body, self.reverse = op, trip, cond, body, reverse
        self.n, self.m = carried, scanned
        self.initial, self.scanned = operands[:carried], operands[carried : carried + scanned]
        self.captured = operands[carried + scanned :]
        wanted = op.wanted[2:]
        self.rows = [i for i in range(scanned) if wanted[carried + i]]
        self.outer = [i for i in range(len(self.captured)) if wanted[carried + scanned + i]]
        self.states = self._active_states({i for i in range(carried) if wanted[i]})
        node = op.node
        self.exact = node.inputs[1] is None and trip.const_value is not None and self._runs_to_the_end()

    def _runs_to_the_end(self) -> bool:
        go = self.body.outputs[0].producer()
        source = go.inputs[0] if go is not None and go.op_type == "Identity" else None
        return source is not None and source.const_value is not None

    def _active_states(self, states: set[int]) -> list[int]:
        """The carried values that depend on something wanted, after any number of iterations."""
        formal, n, m = self.body.inputs, self.n, self.m
        fixed = [formal[1 + n + i] for i in self.rows] + [formal[1 + n + m + i] for i in self.outer]
        while True:
            reached = reached_from(self.body, [*fixed, *(formal[1 + i] for i in sorted(states))])
            more = {i for i in range(n) if self.body.outputs[1 + i] in reached} - states
            if not more:
                return sorted(states)
            states |= more

    def adjoints(self) -> list[Any]:
        """Write the loop and return an adjoint for each input of the node."""
        op, n, m = self.op, self.n, self.m
        stacked = [i for i, adjoint in enumerate(op.dys[n:]) if adjoint is not None]
        if stacked and not self.exact:
            raise op.refused("the loop stacks rows, and how many depends on the data", "read only what it hands on")
        seeds = [op.dys[i] if op.dys[i] is not None else _zeros(op.builder, self.initial[i]) for i in self.states]
        with inherit_source(op.node, op.nodes):
            if self.exact:
                finals, totals, rows = self._taped(seeds, stacked)
            else:
                finals, totals, rows = *self._replayed(seeds), []
        grads: list[Any] = [None] * len(op.inputs)
        for i, grad in zip(self.states, finals, strict=True):
            grads[2 + i] = grad
        for i, grad in totals.items():
            grads[2 + n + m + i] = grad
        for i, grad in zip(self.rows, rows, strict=True):
            grads[2 + n + i] = grad
        return grads

    def _taped(self, seeds: list[Any], stacked: list[int]) -> tuple[list[Any], dict[int, Any], list[Any]]:
        """Over the states that the forward loop hands on, stacked by it as further outputs."""
        op, n, s = self.op, self.n, len(self.states)
        dys = [dy for dy in op.dys[n:] if dy is not None]
        products = self._products()
        _, apart = self._body_over_rows(seeds, stacked, dys, products, frozenset())
        graph, factors = self._body_over_rows(seeds, stacked, dys, products, frozenset(apart))
        added = [i for i in self.outer if i not in factors]
        first = 1 + s + len(added)
        read = {i for i in range(n) if graph.inputs[first + i].uses()}
        read |= {
            factor.row for pair in factors.values() for factor in pair if factor.row is not None and factor.row < n
        }
        tapes = dict(zip(sorted(read), self._tape(sorted(read)), strict=True))
        scanned: list[Any] = [*(tapes.get(i) for i in range(n)), *self.scanned, *dys, *products]
        totals = [_zeros(op.builder, self.captured[i]) for i in added]
        finals, rows = iterate(op.builder, graph, self.trip, None, [*seeds, *totals], scanned, self.captured,
                               reverse=not self.reverse)  # fmt: skip
        sums: dict[int, ir.Value] = dict(zip(added, finals[s:], strict=True))
        extra = iter(rows[len(self.rows) :])
        for i, pair in factors.items():
            left, right = (scanned[f.row] if f.row is not None else next(extra) for f in pair)
            sums[i] = _over_all_rows(op.builder, (left, pair[0].transposed), (right, pair[1].transposed))
        return finals[:s], sums, rows[: len(self.rows)]

    def _products(self) -> list[ir.Value]:
        """Let the forward loop stack the results of matrix products; they are the last outputs of its body then."""
        node, body = self.op.node, self.body
        have = set(body.outputs)
        results = [node.outputs[0] for node in body if record_of(node).product]
        products = [v for v in results if v not in have and v.dtype is not None and v.shape is not None]
        if not products:
            return []
        # Into a copy: other nodes may have the same body.
        count = len(body.outputs)
        body.outputs.extend(products)
        self.body = trace(lambda inner, operands: emit(inner, body, operands), body.inputs)
        del body.outputs[count:]
        node.attributes["body"] = ir.AttrGraph("body", self.body)
        first = len(node.outputs)
        node.resize_outputs(first + len(products))
        length = max(0, int(self.trip.const_value.numpy().item())) if self.trip.const_value is not None else 0
        for value, row in zip(node.outputs[first:], products, strict=True):
            value.type, value.shape = row.type, ir.Shape([length, *static_dims(row)])
            value.name = self.op.builder.fresh(f"{node.outputs[0].name}_products")
        self.op.outputs = node.outputs
        return list(node.outputs[first:])

    def _body_over_rows(
        self, seeds: list[Any], stacked: list[int], dys: list[Any], products: list[ir.Value], apart: frozenset[int]
    ) -> tuple[ir.Graph, dict[int, tuple[_Factor, _Factor]]]:
        """The body of the loop that runs backwards, and what is to be multiplied after it.

        Factors of the adjoints of captured values that are `apart` are handed out as rows, the sums of the others are
        carried. If nothing is apart, the factors are told of those that could be.
        """
        n, m, s = self.n, self.m, len(self.states)
        added = [i for i in self.outer if i not in apart]
        factors: dict[int, tuple[_Factor, _Factor]] = {}

        def write(inner: Builder, formals: list[ir.Value]) -> list[ir.Value]:
            cuts = iter(formals[1:])
            ds, sums, states, rows, dy_rows, product_rows = (
                [next(cuts) for _ in range(count)] for count in (s, len(added), n, m, len(dys), len(products))
            )
            outer = list(cuts)
            start = 1 + s + len(added)
            scanned = {value: i for i, value in enumerate(formals[start : start + n + m + len(dys) + len(products)])}
            outputs, grads, outer_grads, d_rows = self._step(
                inner, formals[0], states, rows, outer, ds, list(zip(stacked, dy_rows, strict=True))
            )
            for i, grad in outer_grads.items():
                pair = _factors(grad, scanned, outer)
                if pair is not None and (i in apart or not apart):
                    factors[i] = pair
            ir.convenience.replace_all_uses_with(outputs[len(outputs) - len(products) :], product_rows)
            handed_out = [f.value for i in factors if i in apart for f in factors[i] if f.row is None]
            news = _added(
                {i: g for i, g in outer_grads.items() if i in added}, dict(zip(added, sums, strict=True)), inner
            )
            return [inner.const(np.array(True)), *grads, *news, *d_rows, *handed_out]

        count = ir.Value(shape=ir.Shape([]), type=ir.TensorType(ir.DataType.INT64))
        free = [ir.Value(shape=v.shape, type=v.type) for v in (*seeds, *(self.captured[i] for i in added))]
        like_states = [ir.Value(shape=v.shape, type=v.type) for v in self.initial]
        row_likes = [_row_of(v) for v in (*self.scanned, *dys, *products)]
        return trace(write, [count, *free, *like_states, *row_likes, *self.captured]), factors

    def _replayed(self, seeds: list[Any]) -> tuple[list[Any], dict[int, Any]]:
        """Running the loop anew up to each iteration, from the last to the first."""
        op, n, s = self.op, self.n, len(self.states)
        totals = [_zeros(op.builder, self.captured[i]) for i in self.outer]
        # A loop that may stop counts its iterations in its last state.
        count = self.trip if self.cond is None and self._runs_to_the_end() else op.outputs[n - 1]
        like_body = list(self.body.inputs)

        def endless(inner: Builder, formals: list[ir.Value]) -> list[ir.Value]:
            return [inner.const(np.array(True)), *emit(inner, self.body, formals)[1 : 1 + n]]

        def write(inner: Builder, formals: list[ir.Value]) -> list[ir.Value]:
            at, ds, sums = formals[0], formals[1 : 1 + s], formals[1 + s : 1 + s + len(totals)]
            last, rest = formals[1 + s + len(totals)], formals[2 + s + len(totals) :]
            initial, outer = rest[:n], rest[n:]
            index = (last - 1) - at
            states, _ = iterate(inner, trace(endless, like_body), index, None, initial, [], outer)
            _, grads, outer_grads, _ = self._step(inner, index, states, [], outer, ds, [])
            news = _added(outer_grads, dict(zip(self.outer, sums, strict=True)), inner)
            return [inner.const(np.array(True)), *grads, *news]

        start = ir.Value(shape=ir.Shape([]), type=ir.TensorType(ir.DataType.INT64))
        free = [ir.Value(shape=v.shape, type=v.type) for v in (*seeds, *totals)]
        captured = [count, *self.initial, *self.captured]
        graph = trace(write, [start, *free, *captured])
        finals, _ = iterate(op.builder, graph, count, None, [*seeds, *totals], [], captured)
        return finals[:s], dict(zip(self.outer, finals[s:], strict=True))

    def _step(
        self, inner: Builder, at: ir.Value, states: Sequence[ir.Value], rows: Sequence[ir.Value],
        outer: Sequence[ir.Value], ds: Sequence[ir.Value], dy_rows: Sequence[tuple[int, ir.Value]],
    ) -> tuple[list[ir.Value], list[Any], dict[int, ir.Value], list[Any]]:  # fmt: skip
        """One iteration: its outputs, and adjoints of the state before it, of what all iterations read, of its rows."""
        states, outer = list(states), list(outer)
        # The states may be computed in this graph too, from the same inputs: that is not this iteration's doing.
        start = len(inner.nodes)
        outputs = emit(inner, self.body, [at, *states, *rows, *outer])
        wrt = [*(states[i] for i in self.states), *(outer[i] for i in self.outer), *(rows[i] for i in self.rows)]
        seeds = [(outputs[1 + i], d) for i, d in zip(self.states, ds, strict=True)]
        seeds += [(outputs[1 + self.n + i], d) for i, d in dy_rows]
        grads = differentiate(inner, [seed for seed in seeds if is_float(seed[0])], wrt, within=inner.nodes[start:])
        a, b = len(self.states), len(self.states) + len(self.outer)
        new_ds = [_zeros(inner, x) if g is None else g for g, x in zip(grads[:a], wrt[:a], strict=True)]
        of_outer = {i: g for i, g in zip(self.outer, grads[a:b], strict=True) if g is not None}
        new_rows = [_zeros(inner, x) if g is None else g for g, x in zip(grads[b:], wrt[b:], strict=True)]
        return outputs, new_ds, of_outer, new_rows

    def _tape(self, needed: Sequence[int]) -> list[ir.Value]:
        """Let the forward loop stack the state that each iteration begins with, unless it does already."""
        node, n = self.op.node, self.n
        body: ir.Graph = node.attributes["body"].value
        have = {}
        for k, value in enumerate(body.outputs[1 + n :]):
            producer = value.producer()
            if producer is not None and producer.op_type == "Identity" and producer.inputs[0] in body.inputs[1 : 1 + n]:
                have[body.inputs.index(producer.inputs[0]) - 1] = n + k
        missing = [i for i in needed if i not in have]
        if missing:
            first = len(node.outputs)

            def write(inner: Builder, formals: list[ir.Value]) -> list[ir.Value]:
                return [*emit(inner, body, formals), *(formals[1 + i] for i in missing)]

            node.attributes["body"] = ir.AttrGraph("body", trace(write, body.inputs))
            node.resize_outputs(first + len(missing))
            length = int(self.trip.const_value.numpy().item()) if self.trip.const_value is not None else 0
            for k, i in enumerate(missing):
                have[i] = first + k
                value, like = node.outputs[first + k], self.initial[i]
                value.type, value.shape = like.type, ir.Shape([max(0, length), *static_dims(like)])
                value.name = self.op.builder.fresh(f"{node.outputs[0].name}_states")
            self.op.outputs = node.outputs
        return [node.outputs[have[i]] for i in needed]


def _row_of(value: ir.Value) -> ir.Value:
    return ir.Value(shape=ir.Shape(list(static_dims(value))[1:]), type=value.type)
