"""Reverse-mode differentiation of a graph: everything that rules share lives here, once."""

from __future__ import annotations

from collections.abc import Iterable, Reversible, Sequence
from types import NotImplementedType
from typing import Any

import onnx_ir as ir

from ontrain.autodiff.differentiability import differentiability
from ontrain.autodiff.op import Op
from ontrain.errors import GradientError
from ontrain.functions import expand, lookup
from ontrain.graph import (
    OPSET,
    Builder,
    blamed_on,
    describe,
    inherit_source,
    is_float,
    reads,
    schema_of,
    shape_text,
    source_of,
    static_dims,
)
from ontrain.operators import find_rule, record_of, zero_gradient_of

__all__ = ["differentiate", "reached_from", "unbroadcast"]


def differentiate(
    op: Builder, outputs: Sequence[tuple[ir.Value, ir.Value | None]], wrt: Sequence[ir.Value],
    *, within: Sequence[ir.Node] | None = None, zeros: bool = False,
) -> list[ir.Value | None]:  # fmt: skip
    """Append to the builder's graph the gradient of `outputs` with respect to `wrt`.

    Args:
        op: builder of the graph that holds the forward nodes; shapes must be concrete.
        outputs: (value, adjoint) pairs; an adjoint of None means one, for a scalar.
        wrt: float values to differentiate by.
        within: the nodes that `outputs` are functions of `wrt` through, in graph order; by default all of the graph.
        zeros: return zeros, as autograd does, where an output depends on a value by derivatives of zero only, such as
            that of Sign.

    Returns:
        For each of `wrt` its adjoint with its own shape and dtype, or None if no output depends on it.

    Raises:
        GradientError: an operator between `wrt` and an output has no rule.
    """
    nodes = list(op.graph) if within is None else within
    active = reached_from(nodes, wrt)
    adjoints: dict[ir.Value, ir.Value] = {}
    for value, seed in outputs:
        if value in active:
            _accumulate(op, adjoints, value, seed if seed is not None else op.const(1.0, value.dtype))
    work = _needed(nodes, adjoints, active)
    with op.arithmetic():
        _walk(op, work, adjoints, active)
    linked = _linked_to([value for value, _ in outputs], nodes) if zeros else ()
    return [_zeros(op, value) if value not in adjoints and value in linked else adjoints.get(value) for value in wrt]


def _zeros(op: Builder, like: ir.Value) -> ir.Value:
    filled: ir.Value = op.Expand(op.const(0.0, like.dtype), list(static_dims(like)))
    return filled


def _linked_to(outputs: Iterable[ir.Value], nodes: Reversible[ir.Node]) -> set[ir.Value]:
    """The values that autograd takes outputs for functions of."""
    linked = set(outputs)
    for node in reversed(nodes):
        if any(v in linked for v in node.outputs):
            linked.update(v for v in _linked(node) if v is not None and is_float(v))
    return linked


def _linked(node: ir.Node) -> Iterable[ir.Value | None]:
    """What a node's results are functions of as autograd records it."""
    own = record_of(node).linked
    if own is not None:
        return own(node)
    # A branch or a body, as it is captured, reads outer values in place.
    return () if zero_gradient_of(node.domain, node.op_type) else reads(node)


def _walk(op: Builder, work: list[ir.Node], adjoints: dict[ir.Value, ir.Value], active: set[ir.Value]) -> None:
    while work:
        node = work.pop()
        dys = [adjoints.get(v) for v in node.outputs]
        if all(dy is None for dy in dys):
            continue
        wanted = [v is not None and v in active and is_float(v) for v in node.inputs]
        if not any(wanted) or zero_gradient_of(node.domain, node.op_type):
            continue
        with inherit_source(node, op.nodes):
            for value, grad, want in zip(node.inputs, _apply(op, node, dys, wanted), wanted, strict=True):
                if grad is not None and want and value is not None:
                    _check_belongs(node, value, grad)
                    _accumulate(op, adjoints, value, grad)


def _apply(op: Builder, node: ir.Node, dys: Sequence[ir.Value | None], wanted: Sequence[bool]) -> list[ir.Value | None]:
    rule = find_rule(node, OPSET)
    if rule is None:
        return _through_body(op, node, dys, wanted)
    attributes = _attributes(node)
    with blamed_on(node, f"the gradient of {node.op_type} does not fit this use of it", GradientError):
        result = rule(Op(op, node, node.inputs, dys, wanted), dys[0], *node.inputs, **attributes)
    if isinstance(result, NotImplementedType):
        return _through_body(op, node, dys, wanted)
    grads: list[ir.Value | None] = [result] if result is None or isinstance(result, ir.Value) else list(result)
    while len(grads) > len(node.inputs) and grads[-1] is None:
        grads.pop()  # optional inputs that this node leaves out
    if len(grads) != len(node.inputs):
        raise AssertionError(f"the rule of {node.op_type} gave {len(grads)} adjoints for {len(node.inputs)} inputs")
    return grads


def _through_body(
    op: Builder, node: ir.Node, dys: Sequence[ir.Value | None], wanted: Sequence[bool]
) -> list[ir.Value | None]:
    """Differentiate an operator without a rule of its own through its body: ours, or the specification's."""
    start = len(op.nodes)
    outputs = expand(op, node, node.inputs)
    if outputs is None:
        raise GradientError(
            f"operator {node.op_type} has no gradient, and the loss depends on a parameter through it",
            node=describe(node),
            source=source_of(node),
            reason=differentiability(node).reason,
            way_out="register one with ontrain.autodiff.gradient, freeze the parameters before it, or detach its input",
        )
    inner = op.nodes[start:]
    reached: set[ir.Value] = {v for v, want in zip(node.inputs, wanted, strict=True) if want and v is not None}
    sources = set(reached)
    for node_inside in inner:
        if any(v in reached for v in node_inside.inputs if v is not None):
            reached.update(v for v in node_inside.outputs if is_float(v))
    adjoints: dict[ir.Value, ir.Value] = {}
    for value, dy in zip(outputs, dys, strict=False):
        if value is not None and dy is not None and value in reached:
            _accumulate(op, adjoints, value, dy)
    _walk(op, list(inner), adjoints, reached)
    return [adjoints.get(v) if v in sources else None for v in node.inputs]


def _attributes(node: ir.Node) -> dict[str, Any]:
    """The node's attributes, with the defaults that the operator's schema or body states."""
    attributes: dict[str, Any] = {}
    schema = schema_of(node.op_type, node.domain)
    if schema is not None:
        for name, spec in schema.attributes.items():
            if spec.default_value.type:
                attributes[name] = ir.serde.deserialize_attribute(spec.default_value).value
    composite = lookup(node)
    if composite is not None:
        attributes.update(composite.defaults)
    attributes.update((name, attr.value) for name, attr in node.attributes.items())
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}


def reached_from(nodes: Iterable[ir.Node], wrt: Sequence[ir.Value], *, zeros: bool = False) -> set[ir.Value]:
    """The float values that depend on one of `wrt`, with zeros also those by derivatives of zero only."""
    reached = set(wrt)
    for node in nodes:
        passes = zeros or not zero_gradient_of(node.domain, node.op_type)
        # A branch or a body, as it is captured, reads outer values in place.
        if passes and any(v in reached for v in (_linked(node) if zeros else reads(node))):
            reached.update(v for v in node.outputs if is_float(v))
    return reached


def _needed(nodes: Reversible[ir.Node], adjoints: dict[ir.Value, ir.Value], active: set[ir.Value]) -> list[ir.Node]:
    """The nodes on a path from an active value to a seeded one, in graph order."""
    needed = set(adjoints)
    path: list[ir.Node] = []
    for node in reversed(nodes):
        if any(v in needed for v in node.outputs) and any(v in active for v in node.inputs if v is not None):
            path.append(node)
            needed.update(v for v in node.inputs if v is not None and v in active)
    return path[::-1]


def _check_belongs(node: ir.Node, value: ir.Value, grad: ir.Value) -> None:
    """Refuse an adjoint that is no operand's: a file's operands need not fit together, nor a rule of a user's."""
    have, want = static_dims(grad), static_dims(value)
    tail = have[len(have) - len(want) :]
    if len(have) < len(want) or any(w not in (1, h) for h, w in zip(tail, want, strict=True)):
        raise GradientError(
            f"the gradient of {node.op_type} has the shape {list(have)}, its operand {value.name!r} {list(want)}",
            node=describe(node),
            source=source_of(node),
            reason="the operands do not fit together, or the gradient rule is wrong",
            way_out="export the model again if it came from a file, which may be damaged; else check the rule",
        )


def _accumulate(op: Builder, adjoints: dict[ir.Value, ir.Value], value: ir.Value, grad: ir.Value) -> None:
    grad = unbroadcast(op, grad, value)
    if grad.dtype != value.dtype:
        grad = op.Cast(grad, to=value.dtype)
    before = adjoints.get(value)
    adjoints[value] = grad if before is None else op.Add(before, grad)


def unbroadcast(op: Builder, grad: ir.Value, like: ir.Value) -> ir.Value:
    """Sum `grad` over the axes along which `like` was broadcast to its shape."""
    have, want = static_dims(grad), static_dims(like)
    if have == want:
        return grad
    lead = len(have) - len(want)
    if lead < 0 or any(w not in (1, h) for h, w in zip(have[lead:], want, strict=True)):
        raise AssertionError(f"an adjoint of shape {have} cannot belong to {like.name}: {shape_text(like)}")
    axes = [*range(lead), *(lead + i for i, w in enumerate(want) if w == 1 and have[lead + i] != 1)]
    grad = op.ReduceSum(grad, axes, keepdims=1) if axes else grad
    if lead:
        grad = op.Reshape(grad, list(want))
    return grad
