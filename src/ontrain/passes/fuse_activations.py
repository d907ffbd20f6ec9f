"""Activations that a model spells out in elementary operators, as one operator again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ontrain.graph import Builder, is_float
from ontrain.operators import dims, erf, record_of
from ontrain.passes.infra import RewritePass, left_alone

__all__ = ["FuseActivations"]

_Array = npt.NDArray[np.float64]

_POINTS: _Array = np.linspace(-8.0, 8.0, 65)
_TOLERANCE = 1e-6
"""Relative; constants are written with seven to ten digits. The forms told apart differ by 1e-4 and more."""
_ROUNDED = {ir.DataType.BFLOAT16: 2.0**-8, ir.DataType.FLOAT16: 2.0**-11}
"""The same where constants are rounded to half precision: how far two numbers lie apart that follow one another."""
_REACH = 4
"""How many operators lie at most between the transcendental function and the end."""


@dataclass(frozen=True)
class _Activation:
    """An activation that formulas spell out.

    Attributes:
        function: the transcendental function in the formula.
        values: the activation's at the points.
        make: emits the activation as one operator.
    """

    function: str
    values: _Array
    make: Callable[[Builder, ir.Value], ir.Value]


_ACTIVATIONS = {
    rule.function: rule
    for rule in (
        _Activation("Erf", _POINTS * 0.5 * (1 + erf(_POINTS / math.sqrt(2))), lambda op, x: op.Gelu(x)),
        _Activation(
            "Tanh",
            0.5 * _POINTS * (1 + np.tanh(math.sqrt(2 / math.pi) * (_POINTS + 0.044715 * _POINTS**3))),
            lambda op, x: op.Gelu(x, approximate="tanh"),
        ),
        _Activation("Sigmoid", _POINTS / (1 + np.exp(-_POINTS)), lambda op, x: op.composite("Silu", x)),
    )
}


class FuseActivations(RewritePass):
    """Turn the formula of an activation into the activation, however it is written.

        0.5 · x · (1 + Tanh(√(2/π) · (x + 0.044715 · Pow(x, 3))))   →   Gelu(x, approximate=tanh)
        x · 0.5 · (1 + Erf(x / √2))                                 →   Gelu(x)
        x · Sigmoid(x)                                              →   Silu(x)

    A formula is known by its values: the operators between a value x and the end are evaluated at 65 points in double
    precision. Equal because such a formula is analytic and agrees with the activation at all of them, in half precision
    as far as its rounded constants tell; eager PyTorch computes with the constants as they were written, and so does
    the activation. It pays because
    one kernel goes over memory once where the formula does ten times, and its gradient needs x alone.
    Left alone: formulas a part of which is read elsewhere, and those of two variables.
    """

    level, tidies = 2, True

    def begin(self, graph: ir.Graph) -> None:
        """Find the last node of each formula."""
        self._found: dict[ir.Node, tuple[str, list[int]]] = {}
        outputs = set(graph.outputs)
        for node in graph:
            if node.domain or node.op_type not in _ACTIVATIONS or not is_float(node.outputs[0]):
                continue
            match = _match(node, outputs)
            if match is not None:
                self._found[match[0]] = (node.op_type, match[1])

    def has_work(self, graph: ir.Graph) -> bool:
        """Whether there is a formula."""
        return bool(self._found)

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Replace the end of a formula; the rest of it goes, as nobody reads it."""
        if node not in self._found:
            return None
        kind, path = self._found[node]
        value = inputs[path[0]]
        for index in path[1:]:
            assert value is not None
            maker = value.producer()
            assert maker is not None
            value = maker.inputs[index]
        assert value is not None
        return [_ACTIVATIONS[kind].make(op, value)]


def _match(function: ir.Node, outputs: set[ir.Value]) -> tuple[ir.Node, list[int]] | None:
    """The end of the formula around a transcendental function, and the way from there to x by indices of inputs."""
    wanted = _ACTIVATIONS[function.op_type].values
    dtype = function.outputs[0].dtype
    tolerance = _TOLERANCE if dtype is None else _ROUNDED.get(dtype, _TOLERANCE)
    for end in _chain(function):
        for x in _arguments(function):
            inside: dict[ir.Value, _Array] = {x: _POINTS}
            formula = _evaluate(end.outputs[0], inside)
            if formula is None or not np.allclose(formula, wanted, rtol=tolerance, atol=tolerance):
                continue
            nodes = {v.producer() for v in inside if v is not x}
            private = all(
                v in (x, end.outputs[0]) or (v not in outputs and all(use.node in nodes for use in v.uses()))
                for v in inside
            )
            if len(dims(x)) != len(dims(end.outputs[0])):  # its constants have one element, and perhaps more axes
                left_alone("the formula broadcasts")
            elif not private:
                left_alone("a part of the formula is read elsewhere")
            else:
                path = _path(end, x)
                return (end, path) if path else None
    return None


def _chain(node: ir.Node) -> Iterator[ir.Node]:
    """Products that the function's result ends up in, by way of results with one reader each."""
    for _ in range(_REACH):
        uses = list(node.outputs[0].uses())
        if len(uses) != 1 or record_of(uses[0].node).function is None:
            return
        node = uses[0].node
        if node.op_type == "Mul":
            yield node


def _arguments(function: ir.Node) -> Iterator[ir.Value]:
    """Values that the function's argument is made of, the nearest first."""
    level = [v for v in function.inputs if v is not None]
    for _ in range(_REACH + 1):
        yield from level
        makers = [v.producer() for v in level]
        known = [m for m in makers if m is not None and record_of(m).function is not None]
        level = list(dict.fromkeys(v for m in known for v in m.inputs if v is not None and v.const_value is None))


def _evaluate(value: ir.Value, known: dict[ir.Value, _Array], depth: int = 3 * _REACH) -> _Array | None:
    """The value at the points, if it depends on nothing but what is known; all that is met becomes known."""
    if value in known:
        return known[value]
    if value.const_value is not None:
        return np.asarray(value.const_value.numpy(), np.float64).reshape(()) if value.const_value.size == 1 else None
    node = value.producer()
    function = None if node is None else record_of(node).function
    if node is None or function is None or not depth:
        return None
    inputs = []
    for source in node.inputs:
        number = _evaluate(source, known, depth - 1) if source is not None else None
        if number is None:
            return None
        inputs.append(number)
    with np.errstate(all="ignore"):
        known[value] = function(*inputs)
    return known[value]


def _path(node: ir.Node, x: ir.Value) -> list[int]:
    """The indices of inputs that lead from a node back to x, the shortest way."""
    todo: list[tuple[ir.Node, list[int]]] = [(node, [])]
    for here, way in todo:
        for index, value in enumerate(here.inputs):
            if value is x:
                return [*way, index]
            maker = value.producer() if value is not None else None
            if maker is not None and record_of(maker).function is not None:
                todo.append((maker, [*way, index]))
    return []
