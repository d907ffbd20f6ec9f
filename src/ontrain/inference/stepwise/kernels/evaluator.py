"""Nodes run by onnx's evaluator: numpy, one node at a time, for what has neither a lowering nor a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx.reference import ReferenceEvaluator

from ontrain.graph import CORRECTIONS, schema_of, subgraphs
from ontrain.inference.stepwise.values import Value, as_array, as_value
from ontrain.operators import Evaluator, record_of

__all__ = ["Evaluated"]


class Evaluated:
    """Runs one node, which must be closed, by onnx's evaluator."""

    def __init__(self, node: ir.Node) -> None:
        clone = ir.Node(
            node.domain, node.op_type,
            [None if v is None else ir.Value(name=f"i{i}") for i, v in enumerate(node.inputs)],
            node.attributes.values(),
            outputs=[ir.Value(name=f"o{i}" if v.name else "") for i, v in enumerate(node.outputs)],
        )  # fmt: skip
        self._evaluator = ReferenceEvaluator(ir.to_proto(clone), new_ops=list(CORRECTIONS))

    @staticmethod
    def knows(node: ir.Node) -> bool:
        """Whether onnx's evaluator has the operator, and has it right."""
        schema = schema_of(node.op_type, node.domain)
        if schema is None or subgraphs(node) or record_of(node).evaluator is Evaluator.LACKS:
            return False
        try:
            Evaluated(node)
        except Exception:  # noqa: BLE001 (onnx raises several unrelated classes for what it lacks)
            return False
        return True

    def run(self, inputs: list[Value], device: torch.device) -> list[Value]:
        """Return the outputs."""
        feeds: dict[str, Any] = {f"i{i}": as_array(value) for i, value in enumerate(inputs) if value is not None}
        with np.errstate(all="ignore"):
            results = self._evaluator.run(None, feeds)
        return [as_value(result, device) for result in results]
