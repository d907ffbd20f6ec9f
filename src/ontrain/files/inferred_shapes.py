"""onnx's own inference of shapes, in memory that does not grow with the sizes it reads."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx.shape_inference

__all__ = ["with_shapes"]

_LONGEST = 1 << 16
"""Elements of a vector that may be followed as if it were a shape; onnx takes some 140 bytes for each."""
_FOLLOWED = {"Add", "Cast", "Concat", "Gather", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"}
"""Operators through which onnx follows values: `OpSchema.has_data_propagation_function`. Shape and Size begin with the
shape of their operand, whose elements they do not read."""
_STANDARD = ("", "ai.onnx")
_HIDDEN = "ontrain.hidden"
"""A domain of which onnx knows no operator, so that it infers nothing."""
_ROUNDS = 8


def with_shapes(model: onnx.ModelProto, *, strict: bool = False) -> onnx.ModelProto:
    """Return a copy of a model with the shapes that onnx infers, those that depend on the values of others, too.

    To follow values, onnx notes each element of a vector that could be a shape, whatever its dtype. A file that states
    or computes a length of 2^32 would take all memory. So values are followed in rounds, each through those nodes only
    whose vectors are known to be short.

    Args:
        model: left untouched.
        strict: refuse types and shapes that contradict the operators.

    Raises:
        onnx.shape_inference.InferenceError: the model is damaged, or contradicts itself.
        ValueError, RuntimeError: it has more than 2 GiB, or is no model.
    """
    shaped = _inferred(model, strict, follow=False)
    if shaped.functions:  # onnx follows values into them where nobody sees their lengths
        return shaped
    shaped.opset_import.add(domain=_HIDDEN, version=1)
    hidden = None
    for _ in range(_ROUNDS):
        unsafe = list(_unsafe(shaped.graph, {}))
        if len(unsafe) == hidden:
            break
        hidden = len(unsafe)
        shaped = _followed(shaped, unsafe, strict)
        if not unsafe:
            break
    del shaped.opset_import[-1]
    return shaped


def _inferred(model: onnx.ModelProto, strict: bool, *, follow: bool) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(model, check_type=strict, strict_mode=strict, data_prop=follow)


def _followed(model: onnx.ModelProto, unsafe: list[onnx.NodeProto], strict: bool) -> onnx.ModelProto:
    """The model with values followed through all but these nodes, whose results get the shapes that follow without."""
    domains = [node.domain for node in unsafe]
    for node in unsafe:
        node.domain = _HIDDEN
    followed = _inferred(model, strict, follow=True)
    if not unsafe:
        return followed
    for node, domain in zip(_nodes(followed.graph, _HIDDEN), domains, strict=True):
        node.domain = domain
    return _inferred(followed, strict, follow=False)


def _nodes(graph: onnx.GraphProto, domain: str) -> Iterator[onnx.NodeProto]:
    """The nodes of a domain in a graph and in the bodies of its nodes, in a fixed order."""
    for node in graph.node:
        if node.domain == domain:
            yield node
        for body in _bodies(node):
            yield from _nodes(body, domain)


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _unsafe(graph: onnx.GraphProto, outer: dict[str, bool]) -> Iterator[onnx.NodeProto]:
    """The nodes, in the order of `_nodes`, that onnx would follow and of which an operand may be a long vector."""
    short = outer | _short(graph)
    for node in graph.node:
        names = (*node.input, *node.output)
        if (
            node.op_type in _FOLLOWED
            and node.domain in _STANDARD
            and not all(short.get(name) for name in names if name)
        ):
            yield node
        for body in _bodies(node):
            yield from _unsafe(body, short)


def _short(graph: onnx.GraphProto) -> dict[str, bool]:
    """Whether a value is known to be no long vector, for those of which the graph tells anything."""
    stated = {
        value.name: _is_short([dim.dim_value or None for dim in value.type.tensor_type.shape.dim])
        for value in (*graph.input, *graph.output, *graph.value_info)
        if value.type.tensor_type.HasField("shape")
    }
    return stated | {tensor.name: _is_short(list(tensor.dims)) for tensor in graph.initializer}


def _is_short(dims: list[int | None]) -> bool:
    return len(dims) != 1 or (dims[0] is not None and dims[0] <= _LONGEST)
