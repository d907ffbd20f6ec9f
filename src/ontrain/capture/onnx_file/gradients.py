"""The operator Gradient of preview.training: a derivative, at the values fed to it, of what the graph computes."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.functions import DERIVATIVE
from ontrain.graph import DOMAIN, describe, source_of

__all__ = ["mark_derivatives"]

_PREVIEW = "ai.onnx.preview.training"


def mark_derivatives(graph: ir.Graph) -> None:
    """Replace each Gradient of the main graph, in place.

    Its attributes name values: y, and the xs to differentiate by. What computes y is computed again from the node's
    own inputs, and `Derivative` of ontrain's domain takes that and them.

    Raises:
        GraphError: a name stands for no value, or a branch or loop computes y.
    """
    for node in [node for node in graph if (node.domain, node.op_type) == (_PREVIEW, "Gradient")]:
        values = {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
        values.update({value.name: value for other in graph for value in other.outputs})
        xs = list(node.attributes["xs"].as_strings())
        zs = list(node.attributes["zs"].as_strings()) if "zs" in node.attributes else []
        target = node.attributes["y"].as_string()
        for name in (*xs, *zs, target):
            if name not in values:
                raise GraphError(f"Gradient names {name!r}, which is no value of the graph", node=describe(node))
        mapped: dict[ir.Value, ir.Value] = {}
        for i, name in enumerate((*xs, *zs)):
            mapped[values[name]] = _appended(
                graph, node, ir.node("Inspect", [node.inputs[i]], {"name": ""}, domain=DOMAIN)
            )
        points = [mapped[values[name]] for name in xs]
        result = _computed_again(graph, node, values[target], mapped)
        derivative = ir.Node(DOMAIN, DERIVATIVE, [result, *points], num_outputs=len(xs))
        _appended(graph, node, derivative)
        for old, new in zip(node.outputs, derivative.outputs, strict=True):
            new.name, old.name = old.name, None
            ir.convenience.replace_all_uses_with([old], [new], replace_graph_outputs=True)
        graph.remove(node, safe=True)
        graph.sort()


def _appended(graph: ir.Graph, origin: ir.Node, node: ir.Node) -> ir.Value:
    node.metadata_props.update(origin.metadata_props)
    for i, value in enumerate(node.outputs):
        value.name = f"{origin.outputs[0].name}_{len(graph)}_{i}"
    graph.append(node)
    return node.outputs[0]


def _computed_again(graph: ir.Graph, origin: ir.Node, value: ir.Value, mapped: dict[ir.Value, ir.Value]) -> ir.Value:
    """The value from other operands: nodes on the way to it are copied."""
    wanted, needed = {value}, list[ir.Node]()
    for node in reversed(list(graph)):
        if any(output in wanted and output not in mapped for output in node.outputs):
            needed.append(node)
            wanted.update(v for v in node.inputs if v is not None)
    for node in reversed(needed):
        if all(v is None or v not in mapped for v in node.inputs):
            continue
        if any(attr.type == ir.AttributeType.GRAPH for attr in node.attributes.values()):
            raise GraphError(
                "Gradient is asked for through a branch or loop", node=describe(node), source=source_of(node),
                way_out="train the file by ORTTrainer",
            )  # fmt: skip
        operands = [None if v is None else mapped.get(v, v) for v in node.inputs]
        copy = ir.Node(node.domain, node.op_type, operands, node.attributes.values(), num_outputs=len(node.outputs))
        copy.version = node.version
        _appended(graph, origin, copy)
        mapped.update(zip(node.outputs, copy.outputs, strict=True))
    return mapped.get(value, value)
