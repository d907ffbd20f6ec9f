"""Operators that run as steps: results sized by values, sequences, optional values, strings, maps."""

import onnx_ir as ir

from ontrain.inference.stepwise.kernels import maps, ngrams, selection, sequences, sized, strings, tables
from ontrain.inference.stepwise.kernels.evaluator import Evaluated
from ontrain.inference.stepwise.kernels.registry import find_kernel, is_control, runs_as_step

__all__ = [
    "maps", "ngrams", "runs_as_step", "runs_beside_plans", "selection", "sequences", "sized", "strings", "tables",
]  # fmt: skip


def runs_beside_plans(domain: str, op_type: str) -> str | None:
    """Return how an operator runs that a provider lacks: "step", "evaluator" for onnx's; None for not at all."""
    node = ir.Node(domain, op_type, [], num_outputs=1)
    if is_control(node) or find_kernel(node) is not None:
        return "step"
    return "evaluator" if Evaluated.knows(node) else None
