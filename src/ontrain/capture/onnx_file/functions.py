"""Model-local functions replaced by their bodies, each node keeping the operator-set version it was written for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.graph import describe, every_node, source_of, subgraphs

__all__ = ["inline_functions"]


def inline_functions(model: ir.Model) -> None:
    """Replace calls of the model's own functions by their bodies, in place; `node.version` is set on every node.

    Raises:
        GraphError: a call does not fit its function. None calls itself: `check_expansion` was there before.
    """
    for function in model.functions.values():
        _state_versions(function, {**model.opset_imports, **function.opset_imports})
        _copy_through(function)
    _state_versions(model.graph, model.opset_imports)
    for function in model.functions.values():
        function.opset_imports.clear()  # the nodes know; a difference is no obstacle
    if model.functions:
        _Inliner(model).graph(model.graph)
        model.functions.clear()
    for node in every_node(model.graph):
        for attr in node.attributes.values():
            if attr.is_ref():
                raise GraphError(
                    f"attribute {attr.name!r} refers to {attr.ref_attr_name!r}, which nothing gives a value",
                    node=describe(node),
                    source=source_of(node),
                )


class _Inliner:
    """Puts bodies in the place of calls, in time proportional to the nodes that come of it.

    onnx_ir's own pass looks for each name at every number before it and keeps a stack for each call, which takes the
    square of a chain's length.
    """

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._taken: set[str] = set()
        self._next: dict[str, int] = defaultdict(lambda: 2)
        self._note(model.graph)

    def graph(self, graph: ir.Graph) -> None:
        """Inline the calls in a graph and in those inside it."""
        for node in graph:  # goes on with what is put behind the present node
            function = self._functions.get(node.op_identifier())
            if function is not None:
                nodes, values = self._body(node, function)
                ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, node.outputs, values)
                continue
            for inner in subgraphs(node):
                self.graph(inner)

    def _note(self, graph: ir.Graph) -> None:
        self._taken.update(value.name for value in graph.inputs if value.name)
        self._taken.update(graph.initializers)
        for node in graph:
            self._taken.update(value.name for value in node.outputs if value.name)
            for inner in subgraphs(node):
                self._note(inner)

    def _fresh(self, wish: str) -> str:
        name = wish
        while name in self._taken:
            name = f"{wish}_{self._next[wish]}"
            self._next[wish] += 1
        self._taken.add(name)
        return name

    def _body(self, call: ir.Node, function: ir.Function) -> tuple[list[ir.Node], list[ir.Value]]:
        """The nodes of a function for one call, and what its outputs are."""
        if len(call.inputs) > len(function.inputs) or len(call.outputs) > len(function.outputs):
            raise _misfit(
                call,
                f"{function.name!r} has {len(function.inputs)} inputs and {len(function.outputs)} outputs, the call "
                f"{len(call.inputs)} and {len(call.outputs)}",
            )
        attributes = {name: attr for name, attr in function.attributes.items() if attr.value is not None}
        attributes.update(call.attributes)
        if any(attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attr in attributes.values()):
            raise _misfit(call, "a graph is handed to a function as an attribute")
        values: dict[ir.Value, ir.Value | None] = dict.fromkeys(function.inputs)
        values.update(zip(function.inputs, call.inputs, strict=False))
        nodes = [self._copy(node, values, attributes, call) for node in function]
        results = [values.get(value) for value in function.outputs[: len(call.outputs)]]
        present = [value for value in results if value is not None]
        if len(present) != len(results):
            raise _misfit(call, "an output of the function is made of an input that the call leaves out")
        return nodes, present

    def _copy(
        self, node: ir.Node, values: dict[ir.Value, ir.Value | None], attributes: Mapping[str, ir.Attr], call: ir.Node
    ) -> ir.Node:
        attrs = [self._attribute(name, attr, values, attributes, call) for name, attr in node.attributes.items()]
        copy = ir.Node(
            node.domain, node.op_type, [None if v is None else values.get(v, v) for v in node.inputs],
            [attr for attr in attrs if attr is not None], overload=node.overload, num_outputs=len(node.outputs),
            version=node.version, name=node.name, metadata_props={**call.metadata_props, **node.metadata_props},
        )  # fmt: skip
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            new.name = self._fresh(old.name) if old.name else old.name
            new.type, new.shape = old.type, None if old.shape is None else old.shape.copy()
            new.const_value = old.const_value
            values[old] = new
        return copy

    def _attribute(
        self, name: str, attr: ir.Attr, values: dict[ir.Value, ir.Value | None], attributes: Mapping[str, ir.Attr],
        call: ir.Node,
    ) -> ir.Attr | None:  # fmt: skip
        if attr.is_ref():
            meant = attributes.get(attr.ref_attr_name or "")
            # Without a value the attribute of the node inside is left out, too.
            return None if meant is None else ir.Attr(name, meant.type, meant.value, meant.ref_attr_name)
        if attr.type == ir.AttributeType.GRAPH:
            return ir.AttrGraph(name, self._graph(attr.as_graph(), values, attributes, call))
        if attr.type == ir.AttributeType.GRAPHS:
            return ir.AttrGraphs(name, [self._graph(graph, values, attributes, call) for graph in attr.as_graphs()])
        return attr

    def _graph(
        self, graph: ir.Graph, values: dict[ir.Value, ir.Value | None], attributes: Mapping[str, ir.Attr], call: ir.Node
    ) -> ir.Graph:
        held = {value: value for value in graph.initializers.values()}
        for value in (*graph.inputs, *held):
            shape = None if value.shape is None else value.shape.copy()
            name = self._fresh(value.name) if value.name else None
            values[value] = ir.Value(name=name, type=value.type, shape=shape, const_value=value.const_value)
        nodes = [self._copy(node, values, attributes, call) for node in graph]
        outputs = [values.get(value, value) for value in graph.outputs]
        if any(value is None for value in outputs):
            raise _misfit(call, "a graph inside the function gives an input that the call leaves out")
        return ir.Graph(
            [_present(values[value]) for value in graph.inputs], [_present(value) for value in outputs], nodes=nodes,
            initializers=[_present(values[value]) for value in held], opset_imports=graph.opset_imports.copy(),
            name=graph.name,
        )  # fmt: skip


def _present(value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value


def _misfit(call: ir.Node, reason: str) -> GraphError:
    return GraphError(
        "a call does not fit the function it names", node=describe(call), source=source_of(call), reason=reason
    )


def _state_versions(graph: ir.Graph | ir.Function, imports: dict[str, int]) -> None:
    for node in every_node(graph):
        node.version = imports.get(node.domain, 1)


def _copy_through(function: ir.Function) -> None:
    """Let no output be an input or another output: inlining would give the caller's values other names."""
    seen: set[ir.Value] = set(function.inputs)
    for i, value in enumerate(function.outputs):
        if value in seen:
            copy = ir.Node("", "Identity", [value], version=function.opset_imports.get("", 1))
            copy.outputs[0].name = f"{value.name}_copy_{i}"
            function.append(copy)
            function.outputs[i] = copy.outputs[0]
        seen.add(value)
