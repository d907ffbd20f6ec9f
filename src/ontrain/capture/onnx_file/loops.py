"""Loops of a file that would not end in anyone's lifetime."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.graph import all_nodes, describe, source_of
from ontrain.rounds import LOOP_LIMIT, loop_limit

__all__ = ["check_loops"]


def check_loops(model: ir.Model) -> None:
    """Refuse a Loop with a constant count beyond `loop_limit`, or without a count and with a condition that stays true.

    Raises:
        GraphError: names the node.
    """
    limit = loop_limit()
    for node in all_nodes(model.graph):
        if node.op_type != "Loop" or node.domain:
            continue
        count = node.inputs[0]
        if count is None:
            if _stays_true(node):
                raise _refused(node, "without end", "it has no count, and its condition never changes")
        elif count.const_value is not None and count.const_value.size == 1:
            rounds = int(count.const_value.numpy().reshape(()))
            if rounds > limit and _stays_true(node):
                raise _refused(node, f"{rounds} times", f"{LOOP_LIMIT} allows {limit} rounds")


def _stays_true(node: ir.Node) -> bool:
    """Whether the body hands its condition on, or makes it a constant."""
    body = node.attributes["body"].as_graph()
    if len(body.inputs) < 2 or not body.outputs:
        raise GraphError(
            "the body of a Loop says not whether to go on",
            node=describe(node),
            source=source_of(node),
            reason=f"it has {len(body.inputs)} inputs and {len(body.outputs)} outputs",
            way_out="let it take a number and a condition and return the next condition first; the file may be damaged",
        )
    value: ir.Value | None = body.outputs[0]
    while value is not None and (producer := value.producer()) is not None and producer.op_type == "Identity":
        value = producer.inputs[0]
    if value is None or value is body.inputs[1]:
        return True
    constant = value.const_value
    return constant is not None and bool(constant.numpy().all())


def _refused(node: ir.Node, often: str, reason: str) -> GraphError:
    return GraphError(
        f"a Loop runs {often}",
        node=describe(node),
        source=source_of(node),
        reason=reason,
        way_out="give it a smaller count, or a condition that the body computes",
    )
