"""If, Loop and Scan as the standard has them: their types, and copies of them with the graphs inside."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ontrain.graph.builder import Builder
from ontrain.graph.infer import TypeAndShape, register_inference
from ontrain.graph.replay import Replay, as_outputs
from ontrain.graph.subgraphs import subgraphs
from ontrain.operators import OPSET

__all__ = ["copy_control", "scan_axes", "trip_count"]

Dims = list[int | str | None]


def copy_control(replay: Replay, node: ir.Node, inputs: list[ir.Value | None]) -> Sequence[ir.Value | None]:
    """Copy a node with the graphs inside; what they read outside is looked up in the replay. Fits `Replay`."""
    formal = _formal_types(node, inputs)
    attributes = [
        ir.AttrGraph(attr.name, _copy_graph(replay, attr.value, formal))
        if attr.type == ir.AttributeType.GRAPH else attr
        for attr in node.attributes.values()
    ]  # fmt: skip
    copy = ir.Node(node.domain, node.op_type, inputs, attributes, num_outputs=len(node.outputs))
    copy.metadata_props.update(node.metadata_props)
    outputs = replay.op.add(copy, [v.name for v in node.outputs])
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _copy_graph(replay: Replay, old: ir.Graph, types: Sequence[TypeAndShape | None]) -> ir.Graph:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name=old.name or "body")
    op = Builder(graph, parent=replay.op)
    mapped: dict[ir.Value, ir.Value] = {}
    for i, value in enumerate(old.inputs):
        new = ir.Value(name=op.fresh(value.name or f"in_{i}"), shape=value.shape, type=value.type)
        known = types[i] if i < len(types) else None
        if new.dtype is None and known is not None:
            new.dtype, new.shape = known
        mapped[value] = new
        graph.inputs.append(new)
    graph.outputs.extend(as_outputs(op, replay.inner(op, mapped).outputs(old)))
    return graph


def _formal_types(node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[TypeAndShape | None]:
    """Types for the inputs of a body whose file leaves them out; a carried tensor may change its shape."""
    if node.op_type == "Loop":
        scalar = ir.Shape([])
        carried = [None if v is None or v.dtype is None else (v.dtype, None) for v in inputs[2:]]
        return [(ir.DataType.INT64, scalar), (ir.DataType.BOOL, scalar), *carried]  # type: ignore[list-item]
    if node.op_type == "Scan":
        rows = node.attributes["num_scan_inputs"].as_int()
        states = inputs[: len(inputs) - rows]
        known = [None if v is None or v.dtype is None or v.shape is None else (v.dtype, v.shape) for v in states]
        for value, axis in zip(inputs[len(states) :], scan_axes(node, "scan_input_axes", rows), strict=True):
            if value is None or value.dtype is None or value.shape is None:
                known.append(None)
                continue
            dims = list(value.shape)
            del dims[axis]
            known.append((value.dtype, ir.Shape(dims)))
        return list(known)
    return []


def scan_axes(node: ir.Node, name: str, count: int) -> list[int]:
    """Return a list attribute of Scan, zeros where it is left out."""
    return list(node.attributes[name].as_ints()) if name in node.attributes else [0] * count


def _infer_if(node: ir.Node) -> list[TypeAndShape | None]:
    then, other = subgraphs(node)
    return [_merged(a, b) for a, b in zip(then.outputs, other.outputs, strict=True)]


def _infer_loop(node: ir.Node) -> list[TypeAndShape | None]:
    (body,) = subgraphs(node)
    carried = len(node.inputs) - 2
    finals = [
        None if start is None else _merged(start, end)
        for start, end in zip(node.inputs[2:], body.outputs[1 : 1 + carried], strict=True)
    ]
    count = trip_count(node)
    return [*finals, *(_stacked(v, count, 0) for v in body.outputs[1 + carried :])]


def _infer_scan(node: ir.Node) -> list[TypeAndShape | None]:
    (body,) = subgraphs(node)
    rows = node.attributes["num_scan_inputs"].as_int()
    states = len(node.inputs) - rows
    first, axis = node.inputs[states], scan_axes(node, "scan_input_axes", rows)[0]
    length = None if first is None or first.shape is None else _dim(first.shape[axis])
    axes = scan_axes(node, "scan_output_axes", len(body.outputs) - states)
    starts = zip(node.inputs[:states], body.outputs, strict=False)
    finals = [None if start is None else _merged(start, end) for start, end in starts]
    return [*finals, *(_stacked(v, length, a) for v, a in zip(body.outputs[states:], axes, strict=True))]


def trip_count(node: ir.Node) -> int | None:
    """Return how often a Loop runs if constants say so: its count is one and its condition is always true."""
    limit, condition = node.inputs[:2] if len(node.inputs) > 1 else (node.inputs[0], None)
    (body,) = subgraphs(node)
    if limit is None or limit.const_value is None or not _always_true(body.outputs[0]):
        return None
    if condition is not None and not _always_true(condition):
        return None
    return max(0, int(limit.const_value.numpy().item()))


def _always_true(value: ir.Value) -> bool:
    producer = value.producer()
    while producer is not None and producer.op_type == "Identity" and producer.inputs[0] is not None:
        value = producer.inputs[0]
        producer = value.producer()
    return value.const_value is not None and bool(value.const_value.numpy().all())


def _merged(a: ir.Value, b: ir.Value) -> TypeAndShape | None:
    """The type of a value that is the one or the other."""
    if a.dtype is None or a.dtype != b.dtype or a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return None
    dims: Dims = [_dim(x) if x == y else None for x, y in zip(a.shape, b.shape, strict=True)]
    return a.dtype, ir.Shape(dims)


def _stacked(value: ir.Value, count: int | str | None, axis: int) -> TypeAndShape | None:
    if value.dtype is None or value.shape is None:
        return None
    dims: Dims = [_dim(d) for d in value.shape]
    dims.insert(axis if axis >= 0 else axis + len(dims) + 1, count)
    return value.dtype, ir.Shape(dims)


def _dim(dim: int | ir.SymbolicDim) -> int | str | None:
    return dim if isinstance(dim, int) else dim.value


for _name, _infer in (("If", _infer_if), ("Loop", _infer_loop), ("Scan", _infer_scan)):
    register_inference(_name, _infer, "")
