"""Where a constant of a specialised graph comes from: the values of the symbolic graph that were folded into it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.graph.builder import Builder
from ontrain.graph.closed_control import closed
from ontrain.graph.halves import reads
from ontrain.graph.plain_control import copy_control
from ontrain.graph.rebuild import clone_value, new_model
from ontrain.graph.replay import Replay
from ontrain.graph.subgraphs import live_nodes
from ontrain.sizes import Sizes, evaluated

__all__ = ["Origins"]

Array = np.ndarray[Any, Any]


class Origins:
    """Finds the value of a graph that is this constant at these sizes: a causal mask, a table of positions.

    Args:
        model: with symbolic dimensions.
        points: sizes of its symbols.
    """

    def __init__(self, model: ir.Model, points: Sequence[Sizes]) -> None:
        self._graph, self._points = model.graph, points

    def find(self, arrays: Sequence[Array]) -> ir.Value | None:
        """Return the first value of the graph that is each of these arrays at its point."""
        for value, first in self._constants[0].items():
            if _equal(first, arrays[0]) and all(
                value in constants and _equal(constants[value], array)
                for constants, array in zip(self._constants[1:], arrays[1:], strict=True)
            ):
                return value
        return None

    def write(self, op: Builder, inputs: Sequence[ir.Value], value: ir.Value) -> ir.Value:
        """Append what computes the value from the shapes of the inputs to another graph."""
        needed, nodes = {value}, []
        for node in reversed(self._graph):
            if any(v in needed for v in node.outputs):
                nodes.append(node)
                needed.update(reads(node))
        replay = Replay(op, dict(zip(self._graph.inputs, inputs, strict=True)), control=copy_control, naming=False)
        replay.run(nodes[::-1])
        return replay.find(value)

    @cached_property
    def _constants(self) -> list[dict[ir.Value, Array]]:
        return [self._folded(point) for point in self._points]

    def _folded(self, point: Sizes) -> dict[ir.Value, Array]:
        old = self._graph.inputs
        shapes = [
            [d if isinstance(d, int) else evaluated(str(d.value), point) or 0 for d in v.shape or ()] for v in old
        ]
        inputs = [clone_value(value, shape) for value, shape in zip(old, shapes, strict=True)]
        graph = new_model(inputs, "sizes").graph
        graph.meta.update(self._graph.meta)
        op = Builder(graph)
        replay = Replay(op, dict(zip(old, inputs, strict=True)), control=closed, naming=False)
        replay.run(live_nodes(self._graph))
        return {v: new.const_value.numpy() for v, new in replay.mapped.items() if new.const_value is not None}


def _equal(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
