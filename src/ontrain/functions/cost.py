"""What a graph of concrete shapes costs to run: floating-point operations, and bytes that are alive at once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import onnx_ir as ir

from ontrain.functions.registry import expand, expansions, has_body, lookup
from ontrain.graph import DOMAIN, Builder, Role, clone_value, graphs_in, is_float, new_model, role_of
from ontrain.operators import View, record_of, size_of

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


_FREE = frozenset({View.SAME, View.RESHAPED, View.PERMUTED})


def _is_view(node: ir.Node) -> bool:
    record = record_of(node)
    return record.written or record.view in _FREE


def _graph(graph: ir.Graph, known: dict[Hashable, Flops]) -> Flops:
    return sum((_node(node, known) for node in graph), Flops())


def _node(node: ir.Node, known: dict[Hashable, Flops]) -> Flops:
    inner = [_graph(subgraph, known) for attr in node.attributes.values() for subgraph in graphs_in(attr)]
    if inner:
        return max(inner, key=lambda branch: branch.total) * _trips(node)
    record = record_of(node)
    if any(size_of(v) == 0 for v in (*node.inputs[:1], *node.outputs[:1]) if v is not None and v.shape is not None):
        return Flops()
    if record.flops is not None:
        return Flops(record.flops(node))
    if not record.computes:
        return Flops()
    key = (
        node.domain,
        node.op_type,
        tuple(None if v is None else (v.dtype, str(v.shape)) for v in node.inputs),
        tuple((n, str(attr.value)) for n, attr in node.attributes.items() if attr.type != ir.AttributeType.TENSOR),
        tuple(str(v.shape) for v in node.outputs),
    )
    counted = _specified if _is_specified(node) else known
    flops = counted.get(key)
    if flops is None:
        body = _body(node)
        flops = _graph(body, known) if body is not None else Flops(0, _elements(node))
        if len(counted) >= _MOST:
            counted.clear()
        counted[key] = flops
    return flops


_MOST = 1 << 14
_specified: dict[Hashable, Flops] = {}
"""Counts of standard operators, whose bodies never change: a trainer's plans ask for the same again and again."""


def _is_specified(node: ir.Node) -> bool:
    """Whether nothing but the specification, and what tells nodes apart here, decides on a node's body."""
    if node.domain or lookup(node) is not None or ("", node.op_type) in expansions:
        return False
    if any(attr.type == ir.AttributeType.TENSOR for attr in node.attributes.values()):
        return False
    return all(value is None or value.const_value is None for value in node.inputs)


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
    for i, (operand, value) in enumerate(zip(inputs, node.inputs, strict=True)):
        if operand is not None and value is not None:
            operand.name, operand.const_value = f"x{i}", value.const_value
    model = new_model([operand for operand in inputs if operand is not None], "body")
    # Ours are not folded: a body may fill a tensor of a gradient's size, and only its cost is asked for. Those of the
    # specification compute their shapes as they go.
    outputs = expand(Builder(model.graph, fold=node.domain != DOMAIN), node, inputs)
    return None if outputs is None else model.graph


def _elements(node: ir.Node) -> int:
    """Elements that an operator touches: of its results, or of its first input where it reduces."""
    results = sum(size_of(v) for v in node.outputs[:1] if is_float(v))
    first = node.inputs[0] if node.inputs else None
    read = size_of(first) if first is not None and is_float(first) else 0
    return max(results, read) if record_of(node).reduces else results


def _nbytes(value: ir.Value) -> int:
    return -(-size_of(value) * value.dtype.bitwidth // 8) if value.dtype is not None else 0


def resident_bytes(model: ir.Model, *roles: Role) -> int:
    """Return the bytes of the graph's inputs that have one of the roles."""
    return sum(_nbytes(v) for v in model.graph.inputs if role_of(v) in roles)
