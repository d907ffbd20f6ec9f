"""Values of the weights of a graph that is made for inference, where passes may look at them and make new ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder, Role, by_role, rebuild, set_role

__all__ = ["Weights", "forget_weights", "weights_of", "with_weights"]

Array = np.ndarray[Any, Any]
_WEIGHTS = "ontrain.weights"


class Weights:
    """What the parameters and buffers of a graph hold, by the names of its inputs.

    Attributes:
        values: arrays or tensors of onnx_ir by name; `settle` leaves those that the graph reads.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values: dict[str, Any] = dict(values)
        self._origins: dict[str, str] = {}

    def holds(self, value: ir.Value | None) -> bool:
        """Whether the numbers of a value are known: it is a weight, or a constant."""
        return value is not None and (value.const_value is not None or self.is_weight(value))

    def is_weight(self, value: ir.Value) -> bool:
        """Whether a value is a parameter or buffer whose numbers are known."""
        return value.is_graph_input() and value.name in self.values

    def array(self, value: ir.Value) -> Array:
        """Return the numbers of a value that is held."""
        if value.const_value is not None:
            return np.asarray(value.const_value.numpy())
        held = self.values[value.name or ""]
        return np.asarray(held.numpy() if hasattr(held, "numpy") else held)

    def doubles(self, value: ir.Value) -> Array:
        """Return the numbers in double precision."""
        return np.asarray(self.array(value), np.float64)

    def add(self, op: Builder, origin: ir.Value, array: Array) -> ir.Value:
        """Make a parameter out of another one, whose name it gets if nobody reads that one any more."""
        return self.add_named(op, origin.name or "weight", array)

    def add_named(self, op: Builder, name: str, array: Array) -> ir.Value:
        """Make a parameter of a name, or of one like it where that is taken."""
        fresh = op.fresh(name)
        tensor = ir.tensor(array, name=fresh)
        value = ir.Value(name=fresh, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
        op.graph.inputs.append(set_role(value, Role.PARAMETER))
        self.values[fresh], self._origins[fresh] = tensor, self._origins.get(name, name)
        return value

    def settle(self, model: ir.Model) -> ir.Model:
        """Return the graph without weights that nobody reads, and free to be passed on: it holds no values.

        A weight takes over the name of the one that it was made of where that is gone.
        """
        settled = rebuild(model, typed=True)  # passes are given a graph whose values a builder typed
        graph = settled.graph
        graph.meta.pop(_WEIGHTS, None)
        for value in by_role(graph, Role.PARAMETER, Role.BUFFER):
            if not value.uses() and not value.is_graph_output():
                graph.inputs.remove(value)
                self.values.pop(value.name or "", None)
        names = {value.name for value in graph.inputs} | {v.name for node in graph for v in node.outputs}
        for value in by_role(graph, Role.PARAMETER):
            origin = self._origins.get(value.name or "")
            if origin is None or origin in names:
                continue
            names.add(origin)
            self.values[origin] = self.values.pop(value.name or "")
            value.name = origin
        return settled


def with_weights(model: ir.Model, values: Mapping[str, Any]) -> Weights:
    """Let passes over a graph, and over those made of it, know what its parameters and buffers hold."""
    weights = model.graph.meta[_WEIGHTS] = Weights(values)
    return weights


def forget_weights(model: ir.Model) -> None:
    """Let a graph that was not changed no longer hold the values of its weights."""
    model.graph.meta.pop(_WEIGHTS, None)


def weights_of(graph: ir.Graph) -> Weights:
    """Return what is known of a graph's weights; nothing where nobody said it."""
    weights = graph.meta.get(_WEIGHTS)
    return weights if isinstance(weights, Weights) else Weights({})
