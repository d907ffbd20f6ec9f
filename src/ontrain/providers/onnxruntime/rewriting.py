"""A step graph in the form that stock onnxruntime runs correctly: plain operators, its known faults written around."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from ontrain.errors import GraphError, ProviderError
from ontrain.functions import expand, has_body, inline_all
from ontrain.graph import DOMAIN, Builder, all_nodes, describe, rebuild, source_of, subgraphs
from ontrain.providers.onnxruntime.composites import COMPOSITES, MASKED
from ontrain.providers.onnxruntime.random import Streams
from ontrain.providers.onnxruntime.rules import RULES, Inputs, Outputs, is_random
from ontrain.providers.onnxruntime.support import refusal

__all__ = ["NAME", "prepare"]

NAME = "OnnxRuntimeExecutionProvider"


def prepare(model: ir.Model, *, keep: Collection[str] = ()) -> ir.Model:
    """Return the model in plain operators that onnxruntime has kernels for.

    Args:
        model: of concrete shapes; left untouched.
        keep: operators of which onnxruntime's own form will do; `Dropout` then draws from the session's stream, and
            the graph needs no random input.

    Raises:
        ProviderError: onnxruntime has no kernel for an operator with these dtypes, and there is no body to take.
    """
    streams = Streams()
    composites = COMPOSITES if "Dropout" in keep else {**COMPOSITES, **MASKED}

    def written(op: Builder, node: ir.Node, inputs: Inputs) -> Outputs | None:
        """A composite in the form that onnxruntime is to run, where that is not its body."""
        rule = composites.get(node.op_type) if node.domain == DOMAIN else None
        if rule is None:
            return None
        with op.arithmetic():
            return rule(op, node, inputs)

    def rewrite(op: Builder, node: ir.Node, inputs: Inputs) -> Outputs | None:
        rule = None if node.domain or node.op_type in keep else RULES.get(node.op_type)
        if rule is None:
            return None
        with op.arithmetic():
            return rule(op, streams, node, inputs)

    plain = inline_all(model, written)
    if not keep:
        _check_loops(plain)
    model = rebuild(plain, rewrite)
    while True:
        refused = {node: reason for node in all_nodes(model.graph) if (reason := refusal(node)) is not None}
        if not refused:
            return model
        model = inline_all(_with_bodies(model, refused))


def _check_loops(model: ir.Model) -> None:
    """Refuse random numbers inside a loop: a counter that does not know the iteration would repeat them."""
    for node in all_nodes(model.graph):
        for inside in (inner for graph in subgraphs(node) for inner in graph):
            if is_random(inside):
                reason = f"it draws random numbers inside a {node.op_type}, the same in each iteration"
                raise unsupported(inside, reason, "draw them before the loop, or unroll it")


def _with_bodies(model: ir.Model, refused: dict[ir.Node, str]) -> ir.Model:
    """Put the specification's bodies in the place of nodes that have no kernel."""

    def body(op: Builder, node: ir.Node, inputs: Inputs) -> Outputs | None:
        if node not in refused:
            return None
        if has_body(node) is None:
            raise unsupported(node, refused[node])
        try:
            return expand(op, node, inputs)
        except GraphError as error:  # a body of the specification that is written for float32 only
            raise unsupported(node, refused[node]) from error

    return rebuild(model, body)


def unsupported(
    node: ir.Node, reason: str, way_out: str = "train in float32, or on TorchExecutionProvider"
) -> ProviderError:
    """Return the error for a node that onnxruntime cannot run."""
    return ProviderError(
        f"{NAME} cannot run {node.op_type}",
        node=describe(node),
        source=source_of(node),
        reason=reason,
        way_out=way_out,
    )
