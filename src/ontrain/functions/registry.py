"""Composite operators: one name for what providers may run as one kernel, one body of plain operators for all others.

A body is a Python function over a `Builder`. Running it inlines the operator; tracing it makes an ONNX function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ontrain.graph import DOMAIN, Builder, rebuild, register_inference

__all__ = ["Composite", "attributes_of", "composite", "composites", "inline", "inline_all", "lookup"]

Infer = Callable[..., Sequence[tuple[ir.DataType, ir.Shape]]]


@dataclass(frozen=True)
class Composite:
    """A composite operator: its name, its body, and its default attributes."""

    name: str
    body: Callable[..., Any]
    defaults: dict[str, Any] = field(default_factory=dict)


composites: dict[str, Composite] = {}
"""All composite operators by name."""


def composite(
    name: str, *, like: Sequence[int] | None = None, infer: Infer | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the body of composite operator `name`.

    Args:
        name: operator name in the ontrain domain.
        like: for each output, the index of the input whose dtype and shape it has.
        infer: instead of `like`, a function of (inputs, **attributes) to (dtype, shape) pairs.
    """

    def register(body: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(body).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        made = Composite(name, body, defaults)
        composites[name] = made

        def types(node: ir.Node) -> Sequence[tuple[ir.DataType, ir.Shape]]:
            if infer is not None:
                return infer(list(node.inputs), **attributes_of(node, defaults))
            assert like is not None
            found = []
            for index in like[: len(node.outputs)]:
                # An optional input that is absent has no gradient output either; a scalar stands in for it.
                source = node.inputs[index] if index < len(node.inputs) else None
                source = source if source is not None else node.inputs[0]
                assert source is not None and source.dtype is not None and source.shape is not None
                found.append((source.dtype, source.shape))
            return found

        register_inference(name, types)
        return body

    return register


def lookup(node: ir.Node) -> Composite | None:
    """Return the composite that a node calls, or None for a standard operator."""
    return composites.get(node.op_type) if node.domain == DOMAIN else None


def attributes_of(node: ir.Node, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the node's attributes as Python values over the defaults."""
    return {**defaults, **{name: attr.value for name, attr in node.attributes.items()}}


def inline(op: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[ir.Value | None] | None:
    """Emit the body of a composite node in its place; None if the node is no composite. Fits `rebuild`."""
    made = lookup(node)
    if made is None:
        return None
    with op.arithmetic():
        outputs = made.body(op, *inputs, **attributes_of(node, made.defaults))
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def inline_all(model: ir.Model) -> ir.Model:
    """Return the model in plain ONNX operators: composites replaced by their bodies until none is left."""
    while any(node.domain == DOMAIN for node in model.graph):
        model = rebuild(model, inline)
    return model
