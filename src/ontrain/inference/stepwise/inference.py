"""Inference of a file's graph that no plan holds whole."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture import NARROW, FiledModel, to_array
from ontrain.errors import GraphError, InputError
from ontrain.graph import all_nodes, describe, schema_of, source_of
from ontrain.inference.stepwise.engine import Engine
from ontrain.inference.stepwise.kernels import runs_as_step
from ontrain.inference.stepwise.program import Program
from ontrain.inference.stepwise.values import Value, is_text, owned, storage
from ontrain.rounds import counted_rounds
from ontrain.session import FILE, check_feed, check_shape

__all__ = ["StepwiseGraph", "is_numeric", "may_need_steps"]


def may_need_steps(graph: ir.Graph) -> bool:
    """Whether a graph has nodes whose types cannot be told before it runs: of sequences, of strings, branches."""
    return any(
        runs_as_step(node)
        or any(v is not None and v.const_value is not None and not is_numeric(v) for v in node.inputs)
        or (node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.STRING)
        for node in all_nodes(graph)
    )


def is_numeric(value: ir.Value) -> bool:
    """Whether a value is known to be no string."""
    return value.dtype is not None and value.dtype != ir.DataType.STRING


class StepwiseGraph:
    """Runs a graph by regions and steps.

    Args:
        filed: the file.
        engine: made of its weights.
    """

    def __init__(self, filed: FiledModel, engine: Engine) -> None:
        graph = filed.raw.graph
        _check_results(graph)
        self._inputs = [value for value in graph.inputs if value.name in filed.input_names]
        self._program, self._engine = Program(graph, engine, outermost=True), engine
        self._names = [value.name or "" for value in graph.outputs]

    def run(self, feeds: Mapping[str, Value]) -> dict[str, Value]:
        """Return all outputs by name, in memory that nothing else has.

        Raises:
            InputError: an input does not fit.
            ProviderError: a node fails.
        """
        sizes: dict[str, tuple[int, str]] = {}
        values: dict[ir.Value, Value] = {}
        for value in self._inputs:
            fed = feeds[value.name or ""]
            self._check(value, fed, sizes)
            values[value] = (
                to_array(fed, value.dtype) if value.dtype in NARROW and isinstance(fed, torch.Tensor) else fed
            )
        with torch.no_grad(), counted_rounds():
            results = self._program.run(values)
        taken = {storage(fed) for fed in values.values() if isinstance(fed, torch.Tensor)} | self._engine.lent
        return {name: owned(result, taken) for name, result in zip(self._names, results, strict=True)}

    def assignment(self) -> list[tuple[bool, list[ir.Node]]]:
        """Return the nodes, each run of neighbours with whether another provider has it."""
        return self._program.assignment()

    def _check(self, value: ir.Value, fed: Value, sizes: dict[str, tuple[int, str]]) -> None:
        if not isinstance(value.type, ir.TensorType):
            return
        if isinstance(fed, torch.Tensor):
            if value.dtype == ir.DataType.STRING:
                raise InputError(f"input {value.name!r} is {fed.dtype}, the graph expects strings")
            check_feed(value, fed, self._engine.device, sizes, FILE)
        elif not (isinstance(fed, np.ndarray) and is_text(fed) == (value.dtype == ir.DataType.STRING)):
            raise InputError(f"input {value.name!r} is a {type(fed).__name__}, the graph expects a tensor")
        elif value.shape is not None:
            check_shape(value, fed.shape, sizes, FILE)


def _check_results(graph: ir.Graph) -> None:
    """Refuse an output that is said to be a tensor and made by an operator that gives none, and the like."""
    for value in graph.outputs:
        node = value.producer()
        schema = None if node is None else schema_of(node.op_type, node.domain)
        if node is None or schema is None or not schema.outputs or value.type is None:
            continue
        formal = schema.outputs[min(value.index() or 0, len(schema.outputs) - 1)]
        kinds = {text.partition("(")[0] for text in formal.types}
        is_sequence, is_optional = isinstance(value.type, ir.SequenceType), isinstance(value.type, ir.OptionalType)
        stated = "seq" if is_sequence else "optional" if is_optional else "tensor"
        if stated not in kinds:
            raise GraphError(
                f"output {value.name!r} is said to be of type {value.type}", node=describe(node),
                source=source_of(node), reason=f"{node.op_type} gives values of kind {', '.join(sorted(kinds))}",
            )  # fmt: skip
