"""The registry of gradient rules: what a rule is given, what it gives back, and how it is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ontrain.graph import Builder

__all__ = ["Op", "Rule", "elementwise", "find_rule", "gradient", "rules", "zero_gradient", "zero_gradients"]

Rule = Callable[..., Any]
"""rule(op, dy, *inputs, **attributes): one adjoint per input, or None where there is none (absent, not zero).

`dy` is the adjoint of the first output. Adjoints may have the broadcast shape: the driver sums them back.
"""


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

    def __getattr__(self, name: str) -> Any:
        return getattr(self.builder, name)


@dataclass(frozen=True)
class _Entry:
    rule: Rule
    since: int
    until: int


rules: dict[tuple[str, str], list[_Entry]] = {}
"""All rules, by (domain, operator)."""
zero_gradients: set[tuple[str, str]] = set()
"""Operators whose derivative is zero wherever it exists: comparisons, rounding, index arithmetic."""


def gradient(*op_types: str, domain: str = "", since: int = 1, until: int = 999) -> Callable[[Rule], Rule]:
    """Register the decorated function as the gradient rule of the operators, for opsets `since` to `until`."""

    def register(rule: Rule) -> Rule:
        for op_type in op_types:
            rules.setdefault((domain, op_type), []).append(_Entry(rule, since, until))
        return rule

    return register


def elementwise(op_type: str, derivative: Callable[..., Any], *, domain: str = "") -> None:
    """Register a one-input elementwise operator by its derivative dy/dx = derivative(op, x, y, **attributes)."""

    def rule(op: Op, dy: ir.Value, x: ir.Value, **attributes: Any) -> Any:
        return dy * derivative(op, x, op.outputs[0], **attributes)

    gradient(op_type, domain=domain)(rule)


def zero_gradient(*op_types: str, domain: str = "") -> None:
    """Declare that nothing flows back through the operators."""
    zero_gradients.update((domain, op_type) for op_type in op_types)


def find_rule(node: ir.Node, opset: int) -> Rule | None:
    """Return the rule that applies to `node` at `opset`, the most recently introduced first."""
    entries = rules.get((node.domain, node.op_type), ())
    fitting = [e for e in entries if node.domain or e.since <= opset <= e.until]
    return max(fitting, key=lambda e: e.since).rule if fitting else None
