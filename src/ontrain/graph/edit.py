"""Rewriting in place: what a rewrite replaces is made anew, and every other node of the graph stays as it is."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ontrain.graph.blame import blamed_on
from ontrain.graph.builder import Editor
from ontrain.graph.replay import Rewrite, alike
from ontrain.graph.source import pass_source_on
from ontrain.graph.standing_outputs import as_output, name_outputs
from ontrain.graph.subgraphs import drop_dead_nodes

__all__ = ["edit", "sweep"]


def edit(model: ir.Model, rewrite: Rewrite) -> list[ir.Node]:
    """Rewrite the nodes of a model in place, and return the new ones.

    Once swept, the model is what `rebuild(model, rewrite, typed=True)` returns.

    Args:
        model: no node of it holds a graph, and a builder typed all values.
        rewrite: asked for each node, with its inputs as they are by then; the node still has those that it had. Nodes
            that are replaced stay for `sweep`, so that what was learnt of the graph before goes on to hold.
    """
    graph = model.graph
    op, mapped = Editor(graph), dict[ir.Value, ir.Value]()
    with op.arithmetic():
        for node in list(graph):
            op.look_at(node)
            try:
                outputs = _outputs(op, node, mapped, rewrite)
            except Exception:  # no block around each node: it would take as long as the node itself
                with blamed_on(node, f"{node.op_type} cannot be made again"):
                    raise
            if outputs is None:
                op.keep(node)
                continue
            for before, after in zip(node.outputs, outputs, strict=False):
                if after is not None and after is not before:
                    mapped[before] = mapped.get(after, after)
    op.look_at(None)
    _settle_outputs(op, mapped)
    return op.nodes


def sweep(graph: ir.Graph) -> None:
    """Remove the nodes that no output depends on, and the constants that nobody reads, in place."""
    drop_dead_nodes(graph)
    for name, constant in list(graph.initializers.items()):
        if not constant.uses() and not constant.is_graph_output():
            del graph.initializers[name]


def _outputs(
    op: Editor, node: ir.Node, mapped: dict[ir.Value, ir.Value], rewrite: Rewrite
) -> Sequence[ir.Value | None] | None:
    """What takes the place of a node's outputs; None where the node stays, with other inputs perhaps."""
    inputs = [None if value is None else mapped.get(value, value) for value in node.inputs]
    start = len(op.nodes)
    outputs = rewrite(op, node, inputs)
    if outputs is not None:
        pass_source_on(node, op.nodes[start:])
        return outputs
    other = [i for i, (new, old) in enumerate(zip(inputs, node.inputs, strict=True)) if new is not old]
    if not other:
        return None
    if alike(node, inputs):
        for i in other:
            node.replace_input_with(i, inputs[i])
        return None
    told = dict(node.metadata_props)
    copy = ir.Node(
        node.domain, node.op_type, inputs, node.attributes.values(), num_outputs=len(node.outputs), metadata_props=told
    )
    results = op.add(copy, [value.name for value in node.outputs])
    return results if isinstance(results, tuple) else (results,)


def _settle_outputs(op: Editor, mapped: dict[ir.Value, ir.Value]) -> None:
    """Let what takes the place of outputs be outputs, under the old names."""
    outputs = op.graph.outputs
    if mapped.keys().isdisjoint(outputs):
        return
    names = [value.name for value in outputs]
    for i, old in enumerate(list(outputs)):
        outputs[i] = as_output(op, mapped.get(old, old), old, outputs[:i])
    name_outputs(op, outputs, names)
