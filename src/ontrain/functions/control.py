"""The composites If and Loop in the standard's terms: their graphs read outer values from within again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import OPSET, Builder, as_outputs, emit
from ontrain.operators import Value, dims, each

__all__: list[str] = []


@composite("If")
def branch(
    op: Builder, cond: Value, *captured: Value, then_branch: Any = None, else_branch: Any = None
) -> tuple[Value, ...]:
    """The outputs of `then_branch` where cond (0-d bool) is true, else of `else_branch`; see `ontrain.graph.control`.

    Source: the operator If; the values that a branch reads are inputs here.
    """
    graphs = {}
    for name, graph in (("then_branch", then_branch), ("else_branch", else_branch)):
        inner = _open(op, name)
        inner.graph.outputs.extend(as_outputs(inner, emit(inner, graph, captured)))
        graphs[name] = inner.graph
    return each(op.call("", "If", [cond], graphs, len(then_branch.outputs)))


@composite("Loop")
def loop(
    op: Builder, trip: Value, cond: Value, *operands: Value,
    body: Any = None, carried: int = 0, scanned: int = 0, reverse: int = 0,
) -> tuple[Value, ...]:  # fmt: skip
    """`body` run `trip` times (0-d int64) while cond (0-d bool) is true; see `ontrain.graph.control`.

    Source: the operator Loop. Rows of scanned values are gathered by the number of the iteration.
    """
    initial, rows = operands[:carried], operands[carried : carried + scanned]
    captured = operands[carried + scanned :]
    inner = _open(op, "body")
    at, go, *states = (_formal(inner, v.dtype, dims(v)) for v in (trip, cast(Value, _BOOL), *initial))
    inner.graph.inputs.extend([at, go, *states])
    with inner.arithmetic():
        index = (trip - 1) - at if reverse else at
        taken = [inner.Gather(row, index, axis=0) for row in rows]
        outputs = emit(inner, body, [index, *states, *taken, *captured])
    inner.graph.outputs.extend(as_outputs(inner, outputs))
    if cond is None:
        cond = op.const(np.array(True))
    results = list(each(op.call("", "Loop", [trip, cond, *initial], {"body": inner.graph}, len(outputs) - 1)))
    if reverse:
        results[carried:] = [op.Slice(y, [-1], [np.iinfo(np.int64).min], [0], [-1]) for y in results[carried:]]
    return tuple(results)


_BOOL = ir.Value(shape=ir.Shape([]), type=ir.TensorType(ir.DataType.BOOL))


def _open(op: Builder, name: str) -> Builder:
    return Builder(ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name=name), parent=op)


def _formal(op: Builder, dtype: ir.DataType, shape: Sequence[int | ir.SymbolicDim]) -> Value:
    return cast(Value, ir.Value(name=op.fresh("in"), shape=ir.Shape(shape), type=ir.TensorType(dtype)))
