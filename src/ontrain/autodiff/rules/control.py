"""Branches and loops with closed bodies (`ontrain.graph.control`).

The gradient of a loop is a loop that runs backwards over the states which the forward loop hands on, and computes each
iteration's body again from the state it began with. A loop whose length depends on the data has no room for these
states in a plan: its gradient runs the loop up to the iteration it needs each time, which costs the square of the
length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.autodiff.driver import differentiate, reached_from
from ontrain.autodiff.registry import Op, gradient
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
        def write(inner: Builder, given: list[ir.Value]) -> list[ir.Value]:
            outputs = emit(inner, graph, given[:k])
            wrt = [given[i] for i in wanted]
            grads = differentiate(inner, [(outputs[i], dy) for i, dy in zip(flowing, given[k:], strict=True)], wrt)
            return [_zeros(inner, x) if grad is None else grad for grad, x in zip(grads, wrt, strict=True)]

        return write

    adjoints = [dy for dy in op.dys if dy is not None]
    with inherit_source(op.node, op.nodes):
        made = choose(op.builder, cond, gradients(then_branch), gradients(else_branch), [*captured, *adjoints])
    grads: list[Any] = [None] * (1 + k)
    for i, grad in zip(wanted, made, strict=True):
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
        totals = [_zeros(op.builder, self.captured[i]) for i in self.outer]
        seeds = [op.dys[i] if op.dys[i] is not None else _zeros(op.builder, self.initial[i]) for i in self.states]
        with inherit_source(op.node, op.nodes):
            if self.exact:
                finals, rows = self._taped(seeds, totals, stacked)
            else:
                finals, rows = self._replayed(seeds, totals), []
        grads: list[Any] = [None] * len(op.inputs)
        for i, grad in zip(self.states, finals[: len(self.states)], strict=True):
            grads[2 + i] = grad
        for i, grad in zip(self.outer, finals[len(self.states) :], strict=True):
            grads[2 + n + m + i] = grad
        for i, grad in zip(self.rows, rows, strict=True):
            grads[2 + n + i] = grad
        return grads

    def _taped(self, seeds: list[Any], totals: list[Any], stacked: list[int]) -> tuple[list[Any], list[Any]]:
        """Over the states that the forward loop hands on, stacked by it as further outputs."""
        op, n, m, s = self.op, self.n, self.m, len(self.states)
        dys = [dy for dy in op.dys[n:] if dy is not None]
        like_states = [ir.Value(shape=v.shape, type=v.type) for v in self.initial]
        row_likes = [_row_of(v) for v in (*self.scanned, *dys)]

        def write(inner: Builder, given: list[ir.Value]) -> list[ir.Value]:
            at, rest = given[0], given[1:]
            ds, sums, rest = rest[:s], rest[s : s + len(totals)], rest[s + len(totals) :]
            states, rows, dy_rows, outer = (
                rest[:n],
                rest[n : n + m],
                rest[n + m : n + m + len(dys)],
                rest[n + m + len(dys) :],
            )
            ds, sums, d_rows = self._step(
                inner, at, states, rows, outer, ds, sums, list(zip(stacked, dy_rows, strict=True))
            )
            return [inner.const(np.array(True)), *ds, *sums, *d_rows]

        count = ir.Value(shape=ir.Shape([]), type=ir.TensorType(ir.DataType.INT64))
        free = [ir.Value(shape=v.shape, type=v.type) for v in (*seeds, *totals)]
        graph = trace(write, [count, *free, *like_states, *row_likes, *self.captured])
        first = 1 + len(free)
        needed = [i for i in range(n) if graph.inputs[first + i].uses()]
        tapes = dict(zip(needed, self._tape(needed), strict=True))
        scanned = [*(tapes.get(i) for i in range(n)), *self.scanned, *dys]
        return iterate(op.builder, graph, self.trip, None, [*seeds, *totals], scanned, self.captured,
                       reverse=not self.reverse)  # fmt: skip

    def _replayed(self, seeds: list[Any], totals: list[Any]) -> list[Any]:
        """Running the loop anew up to each iteration, from the last to the first."""
        op, n, s = self.op, self.n, len(self.states)
        # A loop that may stop counts its iterations in its last state.
        count = self.trip if self.cond is None and self._runs_to_the_end() else op.outputs[n - 1]
        like_body = list(self.body.inputs)

        def endless(inner: Builder, given: list[ir.Value]) -> list[ir.Value]:
            return [inner.const(np.array(True)), *emit(inner, self.body, given)[1 : 1 + n]]

        def write(inner: Builder, given: list[ir.Value]) -> list[ir.Value]:
            at, ds, sums = given[0], given[1 : 1 + s], given[1 + s : 1 + s + len(totals)]
            last, rest = given[1 + s + len(totals)], given[2 + s + len(totals) :]
            initial, outer = rest[:n], rest[n:]
            index = (last - 1) - at
            states, _ = iterate(inner, trace(endless, like_body), index, None, initial, [], outer)
            ds, sums, _ = self._step(inner, index, states, [], outer, ds, sums, [])
            return [inner.const(np.array(True)), *ds, *sums]

        start = ir.Value(shape=ir.Shape([]), type=ir.TensorType(ir.DataType.INT64))
        free = [ir.Value(shape=v.shape, type=v.type) for v in (*seeds, *totals)]
        captured = [count, *self.initial, *self.captured]
        graph = trace(write, [start, *free, *captured])
        finals, _ = iterate(op.builder, graph, count, None, [*seeds, *totals], [], captured)
        return finals

    def _step(
        self, inner: Builder, at: ir.Value, states: Sequence[ir.Value], rows: Sequence[ir.Value],
        outer: Sequence[ir.Value], ds: Sequence[ir.Value], sums: Sequence[ir.Value],
        dy_rows: Sequence[tuple[int, ir.Value]],
    ) -> tuple[list[Any], list[Any], list[Any]]:  # fmt: skip
        """One iteration's adjoints: of the state before it, of what all iterations read (added up), of its rows."""
        states, outer = list(states), list(outer)
        # The states may be computed in this graph too, from the same inputs: that is not this iteration's doing.
        start = len(inner.nodes)
        outputs = emit(inner, self.body, [at, *states, *rows, *outer])
        wrt = [*(states[i] for i in self.states), *(outer[i] for i in self.outer), *(rows[i] for i in self.rows)]
        seeds = [(outputs[1 + i], d) for i, d in zip(self.states, ds, strict=True)]
        seeds += [(outputs[1 + self.n + i], d) for i, d in dy_rows]
        grads = differentiate(inner, [one for one in seeds if is_float(one[0])], wrt, within=inner.nodes[start:])
        a, b = len(self.states), len(self.states) + len(self.outer)
        new_ds = [_zeros(inner, x) if g is None else g for g, x in zip(grads[:a], wrt[:a], strict=True)]
        new_sums = [old if g is None else inner.Add(old, g) for g, old in zip(grads[a:b], sums, strict=True)]
        new_rows = [_zeros(inner, x) if g is None else g for g, x in zip(grads[b:], wrt[b:], strict=True)]
        return new_ds, new_sums, new_rows

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

            def write(inner: Builder, given: list[ir.Value]) -> list[ir.Value]:
                return [*emit(inner, body, given), *(given[1 + i] for i in missing)]

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
