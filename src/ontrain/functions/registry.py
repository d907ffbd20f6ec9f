"""Composite operators: one name for what providers may run as one kernel, one body of plain operators for all others.

A body is a Python function over a `Builder`. Running it inlines the operator; tracing it makes an ONNX function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.functions.specification import inline_specified, specified_body
from ontrain.graph import (
    DOMAIN,
    OPSET,
    Builder,
    Rewrite,
    all_nodes,
    blamed_on,
    blamed_on_whole,
    describe,
    rebuild,
    register_inference,
    shape_text,
    source_of,
    subgraphs,
)
from ontrain.operators import form_of

__all__ = [
    "Composite",
    "NoBodyError",
    "adopted",
    "attributes_of",
    "composite",
    "composites",
    "expand",
    "expansion",
    "expansions",
    "has_body",
    "inline",
    "inline_all",
    "is_plain",
    "lookup",
]

Infer = Callable[..., Sequence[tuple[ir.DataType, ir.Shape]]]
Body = TypeVar("Body", bound=Callable[..., Any])


@dataclass(frozen=True)
class Composite:
    """An operator with a body of ours: its name, the body, and its default attributes."""

    name: str
    body: Callable[..., Any]
    defaults: dict[str, Any] = field(default_factory=dict)


composites: dict[str, Composite] = {}
"""All composite operators by name."""
adopted: dict[tuple[str, str], Composite] = {}
"""Operators that a file may hold and a plain graph may not, by (domain, operator): onnxruntime's contributed ones, and
those of later versions of the standard. Their bodies stand in for them."""
expansions: dict[tuple[str, str], Composite] = {}
"""Bodies of standard operators: what they are differentiated through, and run by where a provider has no kernel."""


class NoBodyError(Exception):
    """Raised by a body for a form of its operator that it cannot express.

    Args:
        reason: why.
        way_out: what the user can do about it.
    """

    def __init__(self, reason: str, way_out: str) -> None:
        super().__init__(reason)
        self.reason, self.way_out = reason, way_out


def composite(
    name: str, *, domain: str = DOMAIN, like: Sequence[int] | None = None, infer: Infer | None = None
) -> Callable[[Body], Body]:
    """Register the decorated function as the body of composite operator `name`.

    Args:
        name: operator name.
        domain: ontrain's own, or that of an operator to adopt.
        like: for each output, the index of the input whose dtype and shape it has.
        infer: instead of `like`, a function of (inputs, **attributes) to (dtype, shape) pairs. An adopted operator of
            the standard needs neither.
    """

    def register(body: Body) -> Body:
        described = _with_defaults(name, body)
        defaults = described.defaults
        if domain == DOMAIN:
            composites[name] = described
        else:
            adopted[domain, name] = described

        def types(node: ir.Node) -> Sequence[tuple[ir.DataType, ir.Shape]]:
            if infer is not None:
                return infer(list(node.inputs), **attributes_of(node, defaults))[: len(node.outputs)]
            assert like is not None
            types = []
            for index in like[: len(node.outputs)]:
                # An optional input that is absent has no gradient output either; a scalar stands in for it.
                source = node.inputs[index] if index < len(node.inputs) else None
                source = source if source is not None else node.inputs[0]
                assert source is not None and source.dtype is not None and source.shape is not None
                types.append((source.dtype, source.shape))
            return types

        if infer is not None or like is not None:
            register_inference(name, types, domain)
        return body

    return register


def expansion(name: str) -> Callable[[Body], Body]:
    """Register the decorated function as the body of standard operator `name`; it may raise `NoBodyError`."""

    def register(body: Body) -> Body:
        expansions["", name] = _with_defaults(name, body)
        return body

    return register


def _with_defaults(name: str, body: Callable[..., Any]) -> Composite:
    parameters = inspect.signature(body).parameters.values()
    return Composite(name, body, {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY})


def lookup(node: ir.Node) -> Composite | None:
    """Return the composite or adopted operator that a node calls, or None for a standard operator."""
    return composites.get(node.op_type) if node.domain == DOMAIN else adopted.get((node.domain, node.op_type))


def is_plain(node: ir.Node) -> bool:
    """Whether a graph of the standard at ontrain's opset may hold the node."""
    if node.domain:
        return lookup(node) is None
    schema = form_of(node)
    return schema is not None and schema.since_version <= OPSET and lookup(node) is None


def has_body(node: ir.Node) -> str | None:
    """Say in a clause where the body that `expand` emits comes from; None if there is none."""
    if lookup(node) is not None:
        return "the body of the composite" if node.domain == DOMAIN else "a body of standard operators"
    if (node.domain, node.op_type) in expansions:
        return "a body of standard operators"
    function = specified_body(node)
    if function is None or any(a.HasField("g") for n in function.node for a in n.attribute):
        return None
    return "the body that the specification gives it"


def attributes_of(node: ir.Node, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the node's attributes as Python values over the defaults."""
    return {**defaults, **{name: attr.value for name, attr in node.attributes.items()}}


def inline(op: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[ir.Value | None] | None:
    """Emit the body of a node that no plain graph may hold in its place; None for all others. Fits `rebuild`."""
    described = lookup(node)
    if described is not None:
        return _emit(op, described, node, inputs)
    return None if is_plain(node) else expand(op, node, inputs)


def expand(op: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[ir.Value | None] | None:
    """Emit the body of a node in its place, ours or the specification's; None if it has none. Fits `rebuild`.

    Raises:
        GraphError: our body cannot express this use of the operator.
    """
    described = lookup(node) or expansions.get((node.domain, node.op_type))
    if described is not None:
        return _emit(op, described, node, inputs)
    with blamed_on_whole(node, f"this use of {node.op_type} cannot be written in other operators"):
        return inline_specified(op, node, inputs)


def _emit(op: Builder, described: Composite, node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[ir.Value | None]:
    problem = f"this use of {node.op_type} cannot be written in other operators"
    try:
        with blamed_on_whole(node, problem), blamed_on(node, problem), op.arithmetic():
            outputs = described.body(op, *inputs, **attributes_of(node, described.defaults))
    except NoBodyError as error:
        raise GraphError(
            problem, node=describe(node), source=source_of(node), reason=error.reason, way_out=error.way_out,
        ) from error  # fmt: skip
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def inline_all(model: ir.Model, form: Rewrite | None = None) -> ir.Model:
    """Return the model in plain ONNX operators: all others replaced by their bodies until none is left.

    Args:
        form: writes a composite, also one in another's body, in other operators; where it returns None, the body does.

    Raises:
        GraphError: the body of an operator comes to the same operator again; names the node.
    """

    def inline_once(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Sequence[ir.Value | None] | None:
        outputs = None if form is None or is_plain(node) else form(op, node, inputs)
        return _inline_once(op, node, inputs) if outputs is None else outputs

    for _ in range(_DEEPEST):
        left = next((n for n in all_nodes(model.graph) if not is_plain(n) and has_body(n) is not None), None)
        if left is None:
            return model
        model = rebuild(model, inline_once)
    assert left is not None
    raise _endless(left)


_DEEPEST = 256
"""Bodies within bodies."""
_AROUND = "ontrain.bodies"
"""The operators in whose bodies a node stands, in the node's `meta`."""


def _inline_once(op: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[ir.Value | None] | None:
    """`inline`, with the operators noted that each new node is of: a body that holds its own operator twice doubles
    with each round, and no number of rounds is small enough for that.
    """
    if is_plain(node):
        return None
    use, around = _use(node), node.meta.get(_AROUND, ())
    if use in around:
        raise _endless(node)
    start = len(op.nodes)
    outputs = inline(op, node, inputs)
    for emitted in op.nodes[start:]:
        for each in (emitted, *(n for graph in subgraphs(emitted) for n in all_nodes(graph))):
            each.meta[_AROUND] = (*around, use)
    return outputs


def _use(node: ir.Node) -> tuple[object, ...]:
    """What a body can depend on: the operator, its attributes, and the types of its operands."""
    attributes = {
        name: id(attr.value) if attr.type in _HELD else repr(attr.value) for name, attr in node.attributes.items()
    }
    return node.domain, node.op_type, frozenset(attributes.items()), tuple(map(shape_text, node.inputs))


_HELD = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS, ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
"""Attributes that are told apart without looking into them."""


def _endless(node: ir.Node) -> GraphError:
    return GraphError(
        f"{node.op_type} cannot be written in operators of the standard", node=describe(node), source=source_of(node),
        reason="its body comes to the same operator again, of types that the standard has it not for",
        way_out="cast its operands to float32",
    )  # fmt: skip
