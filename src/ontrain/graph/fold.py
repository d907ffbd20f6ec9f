"""Evaluation of one node whose inputs are all known: shape arithmetic, masks of a batch's shape, constants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from ontrain.graph.blame import blamed_on
from ontrain.graph.bounds import nbytes
from ontrain.graph.evaluator_corrections import CORRECTIONS
from ontrain.graph.subgraphs import subgraphs
from ontrain.operators import Chance, Evaluator, record_of

__all__ = ["KEEPS_FILLS", "evaluate", "foldable"]

KEEPS_FILLS = "ontrain.keeps_fills"
"""In `graph.meta`: tensors that repeat a value stay nodes, whatever their size; shapes are folded still."""

# A folded value lives as long as its plan; beyond this size computing it each step is the better bargain.
_LIMIT_BYTES = 16 << 20
_LIMIT_LOOPS = 1 << 18
"""The same for what a loop of Python computes."""


def foldable(node: ir.Node, *, keeps_fills: bool = False) -> bool:
    """Whether every input of `node` is constant and evaluating it once is right and affordable; see `KEEPS_FILLS`."""
    if any(value is not None and value.const_value is None for value in node.inputs):
        return False
    record = record_of(node)
    if keeps_fills and record.fills and not _is_shape(node.outputs[0]):
        return False
    if node.domain or record.evaluator is not Evaluator.WHOLE or record.chance is not Chance.NEVER:
        return False
    if subgraphs(node) or node.graph is None and not node.outputs:
        return False
    limit, size = _LIMIT_LOOPS if record.loops else _LIMIT_BYTES, 0
    for value in node.outputs:
        if value.shape is None or not value.shape.is_static() or value.dtype is None:
            return _computed_bytes(node) <= limit
        size += nbytes(value) or 0
    return size <= limit


def _is_shape(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.INT64 and value.shape is not None and len(value.shape) <= 1


def _computed_bytes(node: ir.Node) -> float:
    """Bytes of a result whose shape is told by the operands' values, which inference may not have looked at."""
    operands = [v.const_value.numpy() for v in node.inputs if v is not None and v.const_value is not None]
    if node.op_type == "Range" and len(operands) == 3 and all(o.size == 1 for o in operands):
        start, stop, step = (float(o.reshape(())) for o in operands)
        count = (stop - start) / step if step else math.inf
    elif record_of(node).fills and operands and operands[-1].ndim == 1:
        lengths = [int(d) for d in operands[-1]]
        # Each operand broadcasts to the other: the product bounds the result.
        count = math.prod(max(d, 1) for d in lengths) * (operands[0].size if node.op_type == "Expand" else 1)
    elif record_of(node).sized_by_values and all(o.ndim for o in operands):
        count = sum(o.size * o.ndim for o in operands)  # as many as there are elements, each with its place
    else:
        return math.inf
    return count * 8 if math.isfinite(count) else math.inf


def evaluate(node: ir.Node) -> list[np.ndarray[Any, Any]]:
    """Compute the outputs of a node whose inputs all have a `const_value`.

    Raises:
        GraphError: the operator refuses these values.
    """
    # Infinities are results as others are: the logarithm of zero, say, in a table whose entries none may take.
    with blamed_on(node, "a constant cannot be computed"), np.errstate(all="ignore"):
        return _evaluate(node)


def _evaluate(node: ir.Node) -> list[np.ndarray[Any, Any]]:
    inputs = [None if v is None or v.const_value is None else v.const_value.numpy() for v in node.inputs]
    fast = record_of(node).evaluate
    if fast is not None:
        attributes = {name: attr.value for name, attr in node.attributes.items()}
        result = fast(attributes, *inputs)
        if result is not None:
            return [np.asarray(result)]
    return _with_reference(node, inputs)


def _with_reference(node: ir.Node, inputs: list[np.ndarray[Any, Any] | None]) -> list[np.ndarray[Any, Any]]:
    clone = ir.Node(
        node.domain,
        node.op_type,
        [None if v is None else ir.Value(name=f"i{i}") for i, v in enumerate(inputs)],
        node.attributes.values(),
        outputs=[ir.Value(name=f"o{i}") for i in range(len(node.outputs))],
    )
    feeds = {f"i{i}": v for i, v in enumerate(inputs) if v is not None}
    try:
        results = ReferenceEvaluator(ir.to_proto(clone), new_ops=CORRECTIONS).run(None, feeds)
    except AssertionError as error:  # what it expects of operands it states so
        raise ValueError(str(error) or "onnx's evaluator does not take such operands") from error
    # A reversed slice comes as a view with a negative stride, which torch does not read.
    return [np.array(v, order="C") for v in results]
