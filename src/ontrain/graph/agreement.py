"""Which dimensions of a node's operands must be the same number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from ontrain.graph.builder import static_dims

__all__ = ["Pair", "agreeing_dims"]

Pair = tuple[int, int]
Shape = tuple[int, ...]
_Rule = Callable[[ir.Node, Sequence[Shape]], Iterator[Pair]]


def agreeing_dims(node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[Pair]:
    """Return the pairs of dimensions that must agree for an operator to run, those that do not agree only.

    Args:
        node: says the operator and its attributes.
        inputs: operands of concrete shapes.
    """
    rule = _RULES.get(node.op_type) if node.domain == "" else None
    if rule is None:
        return []
    shapes = [() if value is None else static_dims(value) for value in inputs]
    return [pair for pair in rule(node, shapes) if pair[0] != pair[1]]


def _broadcast(node: ir.Node, shapes: Sequence[Shape]) -> Iterator[Pair]:
    """Dimensions from the last one on: each two of them are equal, or one of them is 1."""
    for number, first in enumerate(shapes):
        for second in shapes[number + 1 :]:
            for a, b in zip(first[::-1], second[::-1], strict=False):
                if 1 not in (a, b):
                    yield a, b


def _matmul(node: ir.Node, shapes: Sequence[Shape]) -> Iterator[Pair]:
    a, b = shapes
    if a and b:
        yield a[-1], b[-2] if len(b) > 1 else b[0]
        yield from _broadcast(node, [a[:-2], b[:-2]])


def _gemm(node: ir.Node, shapes: Sequence[Shape]) -> Iterator[Pair]:
    a, b = (shape[::-1] if node.attributes.get_int(name, 0) else shape
            for shape, name in zip(shapes, ("transA", "transB"), strict=False))  # fmt: skip
    if len(a) == len(b) == 2:
        yield a[1], b[0]
        yield from _broadcast(node, [(a[0], b[1]), *shapes[2:]])


def _convolution(node: ir.Node, shapes: Sequence[Shape]) -> Iterator[Pair]:
    """Channels of the image against those of the filters: [M, C / group, …], or [C, M / group, …] transposed."""
    x, w = shapes[:2]
    if len(x) > 1 and len(w) > 1:
        transposed = node.op_type == "ConvTranspose"
        yield x[1], w[0] if transposed else w[1] * node.attributes.get_int("group", 1)


def _per_channel(node: ir.Node, shapes: Sequence[Shape]) -> Iterator[Pair]:
    for shape in shapes[1:]:
        if len(shapes[0]) > 1 and shape:
            yield shapes[0][1], shape[0]


def _recurrent(node: ir.Node, shapes: Sequence[Shape]) -> Iterator[Pair]:
    """x [L, N, D], weights [directions, gates · H, D] and […, H], bias, lengths [N], states [directions, N, H]."""
    x, w = shapes[:2]
    if len(x) == len(w) == 3:
        yield x[2], w[2]
        if len(shapes) > 4 and shapes[4]:
            yield x[1], shapes[4][0]
        for state in shapes[5:7]:
            if len(state) == 3:
                yield from ((x[1], state[1]), (shapes[2][-1], state[2]))


def _join(node: ir.Node, shapes: Sequence[Shape]) -> Iterator[Pair]:
    axis = node.attributes.get_int("axis", 0) % max(len(shapes[0]), 1)
    for shape in shapes[1:]:
        yield from ((a, b) for i, (a, b) in enumerate(zip(shapes[0], shape, strict=False)) if i != axis)


def _cross_entropy(node: ir.Node, shapes: Sequence[Shape]) -> Iterator[Pair]:
    """Scores [N, C, …], labels [N, …], weights [C]."""
    scores, labels = shapes[:2]
    yield from zip((*scores[:1], *scores[2:]), labels, strict=False)
    if len(shapes) > 2 and shapes[2] and len(scores) > 1:
        yield scores[1], shapes[2][0]


def _einsum(node: ir.Node, shapes: Sequence[Shape]) -> Iterator[Pair]:
    terms = node.attributes.get_string("equation", "").replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=False):
        if len(term) == len(shape):  # without an ellipsis
            yield from ((size, sizes.setdefault(letter, size)) for letter, size in zip(term, shape, strict=True))


_BROADCASTING = (
    "Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual",
    "LayerNormalization", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow",
    "RMSNormalization", "Sub", "Sum", "Where", "Xor",
)  # fmt: skip
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(_BROADCASTING, _broadcast),
    **dict.fromkeys(("BatchNormalization", "GroupNormalization", "InstanceNormalization"), _per_channel),
    **dict.fromkeys(("Conv", "ConvTranspose"), _convolution),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), _cross_entropy),
    "Concat": _join,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "MatMul": _matmul,
}
