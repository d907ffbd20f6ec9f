"""Gradient rules: what a rule is given, what it gives back, and how it is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import NotImplementedType
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from ontrain.operators.emit import Emitter, Value
from ontrain.operators.record import OPERATORS, OPSET, WHEREVER

__all__ = [
    "Adjoints",
    "Limit",
    "Op",
    "Rule",
    "elementwise",
    "find_limit",
    "find_rule",
    "gradient",
    "rules",
    "zero_gradient",
    "zero_gradient_of",
]

Adjoints = Value | Sequence[Value | None] | NotImplementedType | None
"""What a rule returns: the adjoint of the only input, or one for each."""
Rule = Callable[..., Adjoints]
"""rule(op, dy, *inputs, **attributes): one adjoint per input, or None where there is none (absent, not zero).

`dy` is the adjoint of the first output. Adjoints may have the broadcast shape: the driver sums them back.
"""


Limit = Callable[[ir.Node], str | None]
"""limit(node): why the rule cannot differentiate this form of its operator, as its attributes show; or None."""


class Op(Emitter, Protocol):
    """What a rule works with: emits operators as `op.MatMul(a, b)`, and knows the node being differentiated.

    Attributes:
        node: the forward node.
        inputs: its operands.
        outputs: its output values, saved from the forward pass.
        dys: the adjoint of each output, None where nothing flows back.
        wanted: for each input, whether its adjoint will be used.
    """

    node: ir.Node
    inputs: Sequence[Value | None]
    outputs: Sequence[Value]
    dys: Sequence[Value | None]
    wanted: Sequence[bool]

    def saved(self, index: int) -> Value:
        """Return an output of the forward node; the node is given the output if it left it out."""

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """Return the value of a constant input, None if the node leaves the input out; a computed input is refused."""

    def reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        """Return `value` in another shape, as it is if it has that shape."""

    def refused(self, reason: str, way_out: str = ...) -> Exception:
        """Return the error for a form of the operator that has no gradient."""


@dataclass(frozen=True)
class _Entry:
    rule: Rule
    since: int
    until: int
    limit: Limit | None


rules: dict[tuple[str, str], list[_Entry]] = {}
"""All rules, by (domain, operator)."""
_zero: dict[tuple[str, str], str] = {}


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


def elementwise(op_type: str, derivative: Callable[..., Value], *, domain: str = "") -> None:
    """Register a one-input elementwise operator by its derivative dy/dx = derivative(op, x, y, **attributes)."""

    def rule(op: Op, dy: Value, x: Value, **attributes: Any) -> Value:
        return dy * derivative(op, x, op.outputs[0], **attributes)

    gradient(op_type, domain=domain)(rule)


def zero_gradient(*op_types: str, domain: str = "", reason: str = WHEREVER) -> None:
    """Declare that nothing flows back through operators that have no record."""
    _zero.update(((domain, op_type), reason) for op_type in op_types)


def zero_gradient_of(domain: str, op_type: str) -> str:
    """Return why nothing flows back through an operator, "" if something may."""
    record = OPERATORS.get((domain, op_type))
    return (record.zero_gradient if record is not None else "") or _zero.get((domain, op_type), "")


def find_rule(node: ir.Node, opset: int) -> Rule | None:
    """Return the rule that applies to `node` at `opset`, the most recently introduced first."""
    entry = _find(node, opset)
    return None if entry is None else entry.rule


def find_limit(node: ir.Node) -> str | None:
    """Return why this form of the operator, judged by its attributes, is beyond its rule; None if it is not."""
    entry = _find(node, OPSET)
    return None if entry is None or entry.limit is None else entry.limit(node)


def _find(node: ir.Node, opset: int) -> _Entry | None:
    entries = rules.get((node.domain, node.op_type), ())
    fitting = [e for e in entries if node.domain or e.since <= opset <= e.until]
    return max(fitting, key=lambda e: e.since) if fitting else None
