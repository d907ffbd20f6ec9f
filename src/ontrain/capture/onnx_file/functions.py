"""Model-local functions replaced by their bodies, each node keeping the operator-set version it was written for."""

from __future__ import annotations

import graphlib

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from ontrain.errors import GraphError
from ontrain.graph import describe, source_of

__all__ = ["inline_functions"]

_MOST_NODES = 1_000_000
"""Functions that call each other twice a level grow without bound from a file of a few bytes."""


def inline_functions(model: ir.Model) -> None:
    """Replace calls of the model's own functions by their bodies, in place; `node.version` is set on every node.

    Raises:
        GraphError: a function calls itself, the bodies are too many, or a call does not fit its function.
    """
    for function in model.functions.values():
        _state_versions(function, {**model.opset_imports, **function.opset_imports})
        _copy_through(function)
    _state_versions(model.graph, model.opset_imports)
    _check_size(model)
    for function in model.functions.values():
        function.opset_imports.clear()  # the nodes know; a difference is no obstacle
    try:
        InlinePass()(model)
    except (ValueError, KeyError, RuntimeError) as error:
        cause = error.__cause__ or error
        raise GraphError("a call does not fit the function it names", reason=str(cause)) from error
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for attr in node.attributes.values():
            if attr.is_ref():
                raise GraphError(
                    f"attribute {attr.name!r} refers to {attr.ref_attr_name!r}, which nothing gives a value",
                    node=describe(node),
                    source=source_of(node),
                )


def _state_versions(graph: ir.Graph | ir.Function, imports: dict[str, int]) -> None:
    for node in ir.traversal.RecursiveGraphIterator(graph):
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


def _check_size(model: ir.Model) -> None:
    """Count the nodes after inlining without inlining."""
    functions = model.functions
    calls = {
        key: [n.op_identifier() for n in ir.traversal.RecursiveGraphIterator(function)]
        for key, function in functions.items()
    }
    sorter = graphlib.TopologicalSorter({key: {c for c in made if c in functions} for key, made in calls.items()})
    try:
        order = list(sorter.static_order())
    except graphlib.CycleError as error:
        circle = " → ".join(f"{domain}.{name}" for domain, name, _ in error.args[1])
        raise GraphError("a function calls itself", reason=circle) from error
    sizes: dict[ir.OperatorIdentifier, int] = {}
    for key in order:
        sizes[key] = sum(sizes.get(c, 1) for c in calls[key])
    main = sum(sizes.get(n.op_identifier(), 1) for n in ir.traversal.RecursiveGraphIterator(model.graph))
    if main > _MOST_NODES:
        raise GraphError(
            f"the model's functions expand to {main} nodes",
            reason=f"more than {_MOST_NODES} are taken for an attack",
            way_out="inline them with onnx.inliner before loading if the model is meant so",
        )
