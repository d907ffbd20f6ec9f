"""If, Loop, Scan and SequenceMap: graphs inside a graph, each a program that is made once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import to_torch_dtype

from ontrain.errors import GraphError, ProviderError
from ontrain.graph import blamed_on, describe, reads, scan_axes, source_of, subgraphs
from ontrain.inference.stepwise.engine import Engine
from ontrain.inference.stepwise.step import Environment, inputs_of
from ontrain.inference.stepwise.values import Items, Value, is_text
from ontrain.inference.stepwise.whole import Whole
from ontrain.rounds import counted_rounds

__all__ = ["CONTROL", "Control"]


class _Inner(Protocol):
    """A program for a graph inside; see `Program`."""

    inputs: list[ir.Value]

    def run(self, values: dict[ir.Value, Value]) -> list[Value]: ...
    def assignment(self) -> list[tuple[bool, list[ir.Node]]]: ...


_MakesProgram = Callable[[ir.Graph, Engine], Any]


class Control:
    """A node with graphs inside.

    Attributes:
        operator: its name in the standard.
        whole: the node as one call, if it may run so.
    """

    operator: ClassVar[str]

    def __init__(self, node: ir.Node, engine: Engine, program: _MakesProgram) -> None:
        self.node, self.outputs, self._engine = node, list(node.outputs), engine
        self.reads = [value for value in reads(node) if not engine.is_resident(value)]
        graphs = {attr.name: attr.value for attr in node.attributes.values() if attr.value in subgraphs(node)}
        self._check_form()
        self.programs: dict[str, _Inner] = {name: program(graph, engine) for name, graph in graphs.items()}
        self.whole: Whole | None = None

    def _check_form(self) -> None:
        """Refuse a node whose graphs do not fit its inputs and outputs; a file may hold any."""
        for graph in subgraphs(self.node):
            fed, expected = self._expected()
            if (fed is not None and len(graph.inputs) != fed) or len(graph.outputs) < expected:
                wanted = (
                    f"{expected} outputs or more" if fed is None else f"{fed} inputs and {expected} outputs or more"
                )
                raise GraphError(
                    f"a graph inside has {len(graph.inputs)} inputs and {len(graph.outputs)} outputs",
                    node=describe(self.node), source=source_of(self.node), reason=f"it needs {wanted}",
                )  # fmt: skip

    def _expected(self) -> tuple[int | None, int]:
        """How many inputs the graphs inside have, None for any number, and how many outputs at least."""
        return len(self.node.inputs), len(self.outputs)

    def run(self, environment: Environment) -> None:
        """Compute the outputs from what the environment has, into it."""
        if self.whole is None:
            self._run(environment)
        else:
            self.whole.run(environment, functools.partial(self._run, environment))

    def _run(self, environment: Environment) -> None:
        outer = {value: environment[value] for value in self.reads}
        with blamed_on(self.node, f"{self.node.op_type} cannot run", ProviderError):
            results = self._results(inputs_of(self.node, environment, self._engine), outer)
        environment.update(zip(self.outputs, results, strict=False))

    def _results(self, inputs: list[Value], outer: Environment) -> list[Value]:
        raise NotImplementedError

    def _refused(self, problem: str) -> ProviderError:
        return ProviderError(problem, node=describe(self.node), source=source_of(self.node))

    def _stack(self, rows: Sequence[Value], like: ir.Value, axis: int = 0) -> Value:
        """Rows as one tensor; of no rows one of the shape that the file says, zero where it says none."""
        if not rows:
            dims = [] if like.shape is None else [d if isinstance(d, int) else 0 for d in like.shape]
            dims.insert(axis % (len(dims) + 1), 0)
            if like.dtype == ir.DataType.STRING:
                return np.empty(dims, object)
            dtype = torch.float32 if like.dtype is None else to_torch_dtype(like.dtype)
            return torch.empty(dims, dtype=dtype, device=self._engine.device)
        if is_text(rows[0]):
            return np.stack(rows, axis)
        shapes = {tuple(row.shape) for row in rows}
        if len(shapes) > 1:
            raise self._refused(f"the rows of {like.name!r} differ in shape: {sorted(shapes)}")
        return torch.stack(list(rows), axis)


class Branch(Control):
    """If: the branch that the condition chooses."""

    operator = "If"

    def _expected(self) -> tuple[int | None, int]:
        return 0, len(self.outputs)

    def _results(self, inputs: list[Value], outer: Environment) -> list[Value]:
        chosen = "then_branch" if bool(inputs[0].all()) else "else_branch"
        return self.programs[chosen].run(outer)


class Repeat(Control):
    """Loop: its body round after round, whose values may change their shapes."""

    operator = "Loop"

    def _expected(self) -> tuple[int | None, int]:
        return max(2, len(self.node.inputs)), 1 + max(len(self.outputs), len(self.node.inputs) - 2)

    def _results(self, inputs: list[Value], outer: Environment) -> list[Value]:
        body = self.programs["body"]
        trip, go, *carried = [*inputs, None, None][: max(2, len(inputs))]
        rounds = None if trip is None else int(trip.reshape(()))
        graph = self.node.attributes["body"].as_graph()
        n, at = len(carried), 0
        stacked: list[list[Value]] = [[] for _ in graph.outputs[1 + n :]]
        goes_on = True if go is None else bool(go.all())
        with counted_rounds() as another:
            while goes_on and (rounds is None or at < rounds):
                another()
                number = torch.tensor(at, device=self._engine.device).reshape(_dims(body.inputs[0]))
                said = torch.tensor(goes_on, device=self._engine.device).reshape(_dims(body.inputs[1]))
                condition, *results = body.run(
                    {**outer, **dict(zip(body.inputs, [number, said, *carried], strict=True))}
                )
                carried, goes_on, at = results[:n], bool(condition.all()), at + 1
                for rows, row in zip(stacked, results[n:], strict=True):
                    rows.append(row)
        return [*carried, *(self._stack(rows, v) for rows, v in zip(stacked, graph.outputs[1 + n :], strict=True))]


class Scanned(Control):
    """Scan: its body over rows of its inputs."""

    operator = "Scan"

    def _results(self, inputs: list[Value], outer: Environment) -> list[Value]:
        body, node = self.programs["body"], self.node
        m = node.attributes["num_scan_inputs"].as_int()
        n = len(inputs) - m
        states, scanned = inputs[:n], inputs[n:]
        axes, directions = scan_axes(node, "scan_input_axes", m), scan_axes(node, "scan_input_directions", m)
        lengths = {value.shape[axis] for value, axis in zip(scanned, axes, strict=True)}
        if len(lengths) != 1:
            raise self._refused(f"the scanned inputs differ in length: {sorted(lengths)}")
        (length,) = lengths
        outputs = node.attributes["body"].as_graph().outputs[n:]
        k = len(outputs)
        stacked: list[list[Value]] = [[] for _ in outputs]
        for at in range(length):
            rows = [
                value.select(axis, length - 1 - at if backwards else at)
                for value, axis, backwards in zip(scanned, axes, directions, strict=True)
            ]
            results = body.run({**outer, **dict(zip(body.inputs, [*states, *rows], strict=True))})
            states = results[:n]
            for column, row in zip(stacked, results[n:], strict=True):
                column.append(row)
        axes, directions = scan_axes(node, "scan_output_axes", k), scan_axes(node, "scan_output_directions", k)
        wholes = [
            self._stack(rows[::-1] if backwards else rows, value, axis)
            for rows, value, axis, backwards in zip(stacked, outputs, axes, directions, strict=True)
        ]
        return [*states, *wholes]


class MappedSequence(Control):
    """SequenceMap: its body for each item of a sequence."""

    operator = "SequenceMap"

    def _results(self, inputs: list[Value], outer: Environment) -> list[Value]:
        body = self.programs["body"]
        count = len(inputs[0])
        rows: list[list[Value]] = [[] for _ in self.outputs]
        for at in range(count):
            fed = [value[at] if isinstance(value, Items) else value for value in inputs]
            for results, result in zip(
                rows, body.run({**outer, **dict(zip(body.inputs, fed, strict=True))}), strict=True
            ):
                results.append(result)
        return [Items(items) for items in rows]


def _dims(value: ir.Value) -> list[int]:
    """The shape of a body's number or condition: that of a scalar, or of one element if the file says so."""
    return [1] * (0 if value.shape is None else len(value.shape))


_KINDS = (Branch, Repeat, Scanned, MappedSequence)
CONTROL: dict[str, type[Control]] = {kind.operator: kind for kind in _KINDS}
"""By operator."""
