"""The registry of gradient rules: what a rule is given, what it gives back, and how it is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.errors import GradientError
from ontrain.graph import OPSET, Builder, describe, source_of
from ontrain.graph.infer import infer_node

__all__ = [
    "Op",
    "Rule",
    "elementwise",
    "find_limit",
    "find_rule",
    "gradient",
    "rules",
    "zero_gradient",
    "zero_gradients",
]

Rule = Callable[..., Any]
"""rule(op, dy, *inputs, **attributes): one adjoint per input, or None where there is none (absent, not zero).

`dy` is the adjoint of the first output. Adjoints may have the broadcast shape: the driver sums them back.
"""


Limit = Callable[[ir.Node], str | None]
"""limit(node): why the rule cannot differentiate this form of its operator, as its attributes show; or None."""


class Op:
    """What a rule works with: a `Builder` that also knows the node being differentiated.

    Attributes:
        node: the forward node.
        outputs: its output values, saved from the forward pass.
        dys: the adjoint of each output, None where nothing flows back.
        wanted: for each input, whether its adjoint will be used.
    """

    def __init__(self, builder: Builder, node: ir.Node, inputs: Sequence[ir.Value | None],
                 dys: Sequence[ir.Value | None], wanted: Sequence[bool]) -> None:  # fmt: skip
        self.builder, self.node, self.inputs = builder, node, inputs
        self.outputs, self.dys, self.wanted = node.outputs, dys, wanted

    def saved(self, index: int) -> ir.Value:
        """Return an output of the forward node; the node is given the output if it left it out."""
        first = len(self.node.outputs)
        if first <= index:
            self.node.resize_outputs(index + 1)
            for value, found in list(zip(self.node.outputs, infer_node(self.node), strict=True))[first:]:
                if found is None:
                    raise ValueError(f"{self.node.op_type} does not say what its optional outputs are")
                value.dtype, value.shape = found
                value.name = self.builder.fresh(f"{self.node.outputs[0].name}_saved")
            self.outputs = self.node.outputs
        return self.node.outputs[index]

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """Return the value of a constant input, None if the node leaves it out; one that is computed is refused."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            return None
        if value.const_value is None:
            raise self.refused(f"its input {value.name!r} is computed by the graph, and the gradient needs its value")
        return np.asarray(value.const_value.numpy())

    def reshaped(self, value: ir.Value, shape: Sequence[int]) -> Any:
        """Return `value` in another shape, as it is if it has that shape."""
        if value.shape is not None and tuple(value.shape) == tuple(shape):
            return value
        return self.builder.Reshape(value, list(shape), allowzero=1 if 0 in shape else None)

    def refused(self, reason: str, way_out: str = "detach its input, or write the model without it") -> GradientError:
        """Return the error for a form of the operator that has no gradient."""
        return GradientError(
            f"this use of {self.node.op_type} has no gradient, and the loss depends on a parameter through it",
            node=describe(self.node), source=source_of(self.node), reason=reason, way_out=way_out,
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return getattr(self.builder, name)


@dataclass(frozen=True)
class _Entry:
    rule: Rule
    since: int
    until: int
    limit: Limit | None


rules: dict[tuple[str, str], list[_Entry]] = {}
"""All rules, by (domain, operator)."""
zero_gradients: dict[tuple[str, str], str] = {}
"""Operators whose derivative is zero wherever it exists, and why: comparisons, rounding, index arithmetic."""


def gradient(
    *op_types: str, domain: str = "", since: int = 1, until: int = 999, limit: Limit | None = None
) -> Callable[[Rule], Rule]:
    """Register the decorated function as the gradient rule of the operators, for opsets `since` to `until`.

    A rule may return NotImplemented for a form that is to be differentiated through the operator's body.
    """

    def register(rule: Rule) -> Rule:
        for op_type in op_types:
            rules.setdefault((domain, op_type), []).append(_Entry(rule, since, until, limit))
        return rule

    return register


def elementwise(op_type: str, derivative: Callable[..., Any], *, domain: str = "") -> None:
    """Register a one-input elementwise operator by its derivative dy/dx = derivative(op, x, y, **attributes)."""

    def rule(op: Op, dy: ir.Value, x: ir.Value, **attributes: Any) -> Any:
        return dy * derivative(op, x, op.outputs[0], **attributes)

    gradient(op_type, domain=domain)(rule)


def zero_gradient(*op_types: str, domain: str = "", reason: str = "its derivative is zero wherever it exists") -> None:
    """Declare that nothing flows back through the operators."""
    zero_gradients.update(((domain, op_type), reason) for op_type in op_types)


def find_rule(node: ir.Node, opset: int) -> Rule | None:
    """Return the rule that applies to `node` at `opset`, the most recently introduced first."""
    entry = _find(node, opset)
    return None if entry is None else entry.rule


def find_limit(node: ir.Node, opset: int = OPSET) -> str | None:
    """Return why this form of the operator, judged by its attributes, is beyond its rule; None if it is not."""
    entry = _find(node, opset)
    return None if entry is None or entry.limit is None else entry.limit(node)


def _find(node: ir.Node, opset: int) -> _Entry | None:
    entries = rules.get((node.domain, node.op_type), ())
    fitting = [e for e in entries if node.domain or e.since <= opset <= e.until]
    return max(fitting, key=lambda e: e.since) if fitting else None
