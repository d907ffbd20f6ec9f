"""A graph as text that a person reads: one line a node, with the user's source line above a change of it."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.graph.roles import role_of, updates_of
from ontrain.graph.source import describe, shape_text, source_of

__all__ = ["to_text"]


def to_text(model: ir.Model) -> str:
    """Return the graph's inputs with roles, its nodes with shapes and source lines, and its outputs."""
    graph = model.graph
    lines = [f"graph {graph.name}"]
    lines += [f"  in  {v.name}: {shape_text(v)} ({role_of(v)})" for v in graph.inputs]
    lines += _nodes(graph, "  ")
    for v in graph.outputs:
        target = updates_of(v)
        lines.append(f"  out {v.name}: {shape_text(v)}" + (f" -> {target}" if target else ""))
    return "\n".join(lines)


def _nodes(graph: ir.Graph, indent: str) -> list[str]:
    """One line a node; the graphs inside it follow, further to the right."""
    lines: list[str] = []
    last = None
    for node in graph:
        source = source_of(node)
        if source != last:
            lines.append(f"{indent}# {source or 'made by ontrain'}")
            last = source
        lines.append(f"{indent}{describe(node)}")
        for name, attr in node.attributes.items():
            if attr.type != ir.AttributeType.GRAPH:
                continue
            inputs = ", ".join(f"{v.name}: {shape_text(v)}" for v in attr.value.inputs)
            lines.append(f"{indent}  {name}({inputs})")
            lines += _nodes(attr.value, indent + "    ")
            lines.append(f"{indent}    out " + ", ".join(f"{v.name}: {shape_text(v)}" for v in attr.value.outputs))
    return lines
