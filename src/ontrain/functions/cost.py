"""What a graph of concrete shapes costs to run: floating-point operations, and bytes that are alive at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import onnx_ir as ir

from ontrain.functions import attributes_of, expand, has_body, lookup
from ontrain.graph import DOMAIN, Builder, Role, clone_value, is_float, new_model, role_of, static_dims

__all__ = ["Flops", "count_flops", "live_bytes", "node_flops", "resident_bytes"]


@dataclass(frozen=True)
class Flops:
    """Floating-point operations; a multiplication and an addition are two.

    Attributes:
        products: of matrix products and convolutions, exact: 2mnk.
        other: of everything else, one an element of the result, or of the input for a reduction.
    """

    products: int = 0
    other: int = 0

    def __add__(self, more: Flops) -> Flops:
        return Flops(self.products + more.products, self.other + more.other)

    def __mul__(self, times: int) -> Flops:
        return Flops(self.products * times, self.other * times)

    @property
    def total(self) -> int:
        """All of them."""
        return self.products + self.other


def count_flops(model: ir.Model) -> Flops:
    """Count a graph whose shapes are concrete; composites by their bodies, a loop of unknown length once."""
    return _graph(model.graph, {})


def node_flops(node: ir.Node, known: dict[Hashable, Flops] | None = None) -> Flops:
    """Count one node of concrete shapes, as `count_flops` does; `known` remembers the counts of nodes like it."""
    return _node(node, {} if known is None else known)


def live_bytes(model: ir.Model) -> int:
    """Return the most bytes that results are alive at once when nodes run in order and views take no memory.

    An estimate for a graph that is not compiled; inputs and constants are not in it.
    """
    graph = model.graph
    position = {node: i for i, node in enumerate(graph)}
    end = len(position)
    changes = [0] * (end + 2)
    for node, born in position.items():
        if _is_view(node):
            continue
        for value in node.outputs:
            dies = _last_use(value, position, end)
            changes[born] += _nbytes(value)
            changes[dies + 1] -= _nbytes(value)
    most = now = 0
    for change in changes:
        now += change
        most = max(most, now)
    return most


def _last_use(value: ir.Value, position: dict[ir.Node, int], end: int) -> int:
    if value.is_graph_output():
        return end
    last = -1
    for use in value.uses():
        node = use.node
        at = position.get(node, end)  # a use inside a subgraph: alive to the end is an upper bound
        last = max(last, at)
        if node in position and _is_view(node):
            last = max(last, *(_last_use(out, position, end) for out in node.outputs))
    return last if last >= 0 else position[_producer(value)]


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


_VIEWS = frozenset({
    "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Transpose", "Shape", "Size", "Constant",
})  # fmt: skip
_MOVES = _VIEWS | {"Expand", "Slice", "Split", "Concat", "Gather", "GatherElements", "GatherND", "Pad", "Tile"}
"""They compute nothing."""


def _is_view(node: ir.Node) -> bool:
    return not node.domain and node.op_type in _VIEWS


def _graph(graph: ir.Graph, known: dict[Hashable, Flops]) -> Flops:
    return sum((_node(node, known) for node in graph), Flops())


def _node(node: ir.Node, known: dict[Hashable, Flops]) -> Flops:
    inner = [_graph(one, known) for attr in node.attributes.values() for one in _subgraphs(attr)]
    if inner:
        return max(inner, key=lambda one: one.total) * _trips(node)
    exact = (_PRODUCTS if not node.domain else _OWN_PRODUCTS).get(node.op_type)
    if exact is not None and node.domain in ("", DOMAIN):
        return Flops(exact(node))
    if node.domain == "" and node.op_type in _MOVES:
        return Flops()
    key = (
        node.domain,
        node.op_type,
        tuple(None if v is None else (v.dtype, str(v.shape)) for v in node.inputs),
        tuple(str(attr.value) for attr in node.attributes.values() if attr.type != ir.AttributeType.TENSOR),
        len(node.outputs),
    )
    if key not in known:
        body = _body(node)
        known[key] = _graph(body, known) if body is not None else Flops(0, _elements(node))
    return known[key]


def _subgraphs(attr: ir.Attr) -> list[ir.Graph]:
    if attr.type == ir.AttributeType.GRAPH:
        return [attr.as_graph()]
    return list(attr.as_graphs()) if attr.type == ir.AttributeType.GRAPHS else []


def _trips(node: ir.Node) -> int:
    """How often a body runs, where that is known beforehand."""
    if node.op_type == "Loop" and node.inputs[0] is not None and node.inputs[0].const_value is not None:
        return int(node.inputs[0].const_value.numpy().reshape(()))
    if node.op_type == "Scan" and "num_scan_inputs" in node.attributes:
        scanned = node.inputs[-node.attributes["num_scan_inputs"].as_int()]
        if scanned is not None and scanned.shape is not None and isinstance(scanned.shape[0], int):
            return int(scanned.shape[0])
    return 1


def _body(node: ir.Node) -> ir.Graph | None:
    """The operators that a node stands for, or None for one that stands for itself."""
    if has_body(node) is None:
        return None
    inputs = [None if v is None else clone_value(v) for v in node.inputs]
    for i, (one, value) in enumerate(zip(inputs, node.inputs, strict=True)):
        if one is not None and value is not None:
            one.name, one.const_value = f"x{i}", value.const_value
    model = new_model([one for one in inputs if one is not None], "body")
    # Ours are not folded: a body may fill a tensor of a gradient's size, and only its cost is asked for. Those of the
    # specification compute their shapes as they go.
    made = expand(Builder(model.graph, fold=node.domain != DOMAIN), node, inputs)
    return None if made is None else model.graph


def _elements(node: ir.Node) -> int:
    """Elements that an operator touches: of its results, or of its first input where it reduces."""
    made = sum(_size(v) for v in node.outputs[:1] if is_float(v))
    first = node.inputs[0] if node.inputs else None
    read = _size(first) if first is not None and is_float(first) else 0
    return max(made, read) if node.op_type.startswith(("Reduce", "Global", "ArgM", "Sum")) else made


def _size(value: ir.Value) -> int:
    return math.prod(static_dims(value)) if value.shape is not None and value.shape.is_static() else 0


def _nbytes(value: ir.Value) -> int:
    return -(-_size(value) * value.dtype.bitwidth // 8) if value.dtype is not None else 0


def _dims(node: ir.Node, index: int) -> tuple[int, ...]:
    value = node.inputs[index]
    assert value is not None
    return static_dims(value)


def _matmul(node: ir.Node) -> int:
    return 2 * _size(node.outputs[0]) * _dims(node, 0)[-1]


def _gemm(node: ir.Node) -> int:
    a = _dims(node, 0)
    transposed = node.attributes["transA"].as_int() if "transA" in node.attributes else 0
    return 2 * _size(node.outputs[0]) * a[0 if transposed else 1]


def _conv(node: ir.Node) -> int:
    return 2 * _size(node.outputs[0]) * math.prod(_dims(node, 1)[1:])


def _conv_transpose(node: ir.Node) -> int:
    return 2 * math.prod(_dims(node, 0)) * math.prod(_dims(node, 1)[1:])


def _wanted(node: ir.Node) -> int:
    """How many of the adjoints of image and kernel are computed; that of the bias is a sum."""
    composite = lookup(node)
    assert composite is not None
    return sum(attributes_of(node, composite.defaults)["output_mask"][:2])


def _conv_grad(node: ir.Node) -> int:
    return 2 * math.prod(_dims(node, 0)) * math.prod(_dims(node, 2)[1:]) * _wanted(node)


def _conv_transpose_grad(node: ir.Node) -> int:
    return 2 * math.prod(_dims(node, 1)) * math.prod(_dims(node, 2)[1:]) * _wanted(node)


def _attention(node: ir.Node) -> int:
    q, k, v = (_dims(node, i) for i in range(3))
    return 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def _attention_grad(node: ir.Node) -> int:
    q, k, v = (_dims(node, i) for i in (1, 2, 3))
    return 4 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def _einsum(node: ir.Node) -> int:
    """Two operands: one product over all indices; more are taken as a chain of such products."""
    terms = node.attributes["equation"].as_string().replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    ellipsis = 1
    for index, term in enumerate(terms):
        dims = _dims(node, index)
        letters = term.replace("...", "")
        if "..." in term:
            before = len(term.partition("...")[0])
            broadcast = dims[before : len(dims) - (len(letters) - before)]
            ellipsis = max(ellipsis, math.prod(broadcast))
            dims = (*dims[:before], *dims[before + len(broadcast) :])
        for letter, size in zip(letters, dims, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), size)
    return 2 * ellipsis * math.prod(sizes.values()) * max(len(terms) - 1, 0)


_PRODUCTS: dict[str, Callable[[ir.Node], int]] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
}
_OWN_PRODUCTS: dict[str, Callable[[ir.Node], int]] = {
    "ConvGrad": _conv_grad,
    "ConvTransposeGrad": _conv_transpose_grad,
    "Attention": _attention,
    "AttentionGrad": _attention_grad,
}


def resident_bytes(model: ir.Model, *roles: Role) -> int:
    """Return the bytes of the graph's inputs that have one of the roles."""
    return sum(_nbytes(v) for v in model.graph.inputs if role_of(v) in roles)
