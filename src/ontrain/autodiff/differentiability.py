"""How an operator is differentiated, or why it is not: what error messages and reports on a model say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.functions import adopted, expand, expansions, has_body
from ontrain.graph import DOMAIN, OPSET, Builder, clone_value, new_model
from ontrain.operators import OPERATORS, find_limit, find_rule, record_of, rules, zero_gradient_of

__all__ = ["Differentiability", "differentiability"]

Kind = Literal["rule", "body", "zero", "none"]


@dataclass(frozen=True)
class Differentiability:
    """The answer of `differentiability`.

    Attributes:
        kind: "rule" for a rule of its own; "body" for an operator that is differentiated through its body of other
            operators; "zero" where the derivative is zero wherever it exists; "none" where there is no gradient.
        reason: one clause that says so, and for "none" why.
    """

    kind: Kind
    reason: str

    @property
    def available(self) -> bool:
        """Whether a parameter may lie behind the operator."""
        return self.kind != "none"


def differentiability(node: ir.Node | tuple[str, str]) -> Differentiability:
    """Say how gradients flow back through an operator.

    Args:
        node: a node, whose attributes are looked at too; or (domain, operator).

    Returns:
        Also for an operator that nobody knows: its kind is "none".
    """
    if isinstance(node, tuple):
        node = ir.Node(node[0], node[1], [], num_outputs=1)
    key = node.domain, node.op_type
    zero = zero_gradient_of(*key)
    if zero:
        return Differentiability("zero", zero)
    limit = find_limit(node)
    if limit is not None:
        return Differentiability("none", limit)
    if find_rule(node, OPSET) is not None:
        return Differentiability("rule", "a rule of its own")
    if record_of(node).control and (DOMAIN, "Loop") in rules:
        return Differentiability("rule", "a rule of its own, once the graph is specialised to its shapes")
    body = has_body(node)
    if body is not None:
        refusal = _refusal(node)
        return Differentiability("body", body) if refusal is None else Differentiability("none", refusal)
    return Differentiability("none", _why_not(*key))


def _refusal(node: ir.Node) -> str | None:
    """Why our body cannot express this use of its operator, found by trying; None if it can or shapes are missing."""
    if (node.domain, node.op_type) not in {*expansions, *adopted} or not node.inputs:
        return None
    operands = [v for v in node.inputs if v is not None]
    if any(v.dtype is None or v.shape is None or not v.shape.is_static() for v in operands):
        return None
    copies = {v: clone_value(v) for v in operands}
    for value, copy in copies.items():
        copy.const_value = value.const_value
    op = Builder(new_model([copy for copy in copies.values() if copy.const_value is None], "trial").graph)
    inputs = [None if v is None else copies[v] for v in node.inputs]
    try:
        expand(op, ir.Node(node.domain, node.op_type, inputs, node.attributes.values(), num_outputs=1), inputs)
    except GraphError as error:
        return error.reason
    return None


def _why_not(domain: str, op_type: str) -> str:
    record = OPERATORS.get(("" if domain == "ai.onnx" else domain, op_type))
    if record is not None and record.no_gradient:
        return record.no_gradient
    return f"no rule is registered for {domain or 'ai.onnx'}.{op_type}, and it has no body of other operators"
