"""Guards of operands whose sizes or ranks onnxruntime takes for granted, see `ontrain.files.demands`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from ontrain.files.demands import Demand, demands_of, stacked
from ontrain.files.guard_errors import SIZES, STACKED
from ontrain.files.guard_nodes import KIND, LARGEST, SLICES_FED, GuardNodes, scalar
from ontrain.files.inner_graphs import subgraphs

__all__ = ["guard_sizes"]

_SCANS_AXES = 9
"""The operator set from which on a Scan goes over other axes than the first."""


def guard_sizes(node: onnx.NodeProto, shapes: Mapping[str, Sequence[int]], guards: GuardNodes) -> int:
    """Guard a node that has demands, in place; return how many of them needed it.

    Args:
        node: changed in place.
        shapes: those that are certain, by the names of values.
        guards: takes the nodes that come before it.
    """
    checks, count = [], 0
    for demand in demands_of(node, {name: len(shape) for name, shape in shapes.items()}):
        operand = node.input[demand.operand]
        known = shapes.get(operand)
        if known is not None and demand.holds(known):
            continue
        called = f"{SIZES} {demand.operand} of {node.op_type} {node.name or node.output[0]}"
        if node.op_type == "Scan":
            checks.append((demand, operand, called))
            continue
        count += 1
        shape = guards.emit("Shape", [operand])
        met = _is_met(demand, operand, shape, guards)
        # Not a copy: onnxruntime gives a reshaped value the memory that it had.
        node.input[demand.operand] = guards.emit("Reshape", [operand, guards.unless(shape, met, called)])
    if node.op_type == "Scan" and node.domain in ("", "ai.onnx") and guards.opset >= _SCANS_AXES:
        count += _guard_scan(node, checks, guards)
    return count


def _is_met(demand: Demand, operand: str, shape: str, guards: GuardNodes) -> str:
    """Whether an operand of this shape meets a demand, or which of its sizes do."""
    if demand.is_number:
        return guards.emit("Cast", [operand], to=KIND.BOOL)
    if demand.rank is None:
        return guards.emit("Cast", [_sizes_asked(shape, demand, guards)], to=KIND.BOOL)
    rank = guards.emit("Cast", [guards.emit("Size", [shape])], to=KIND.DOUBLE)
    return guards.emit("Less", [guards.constant(np.array([demand.rank - 1]), KIND.DOUBLE), rank])


def _guard_scan(node: onnx.NodeProto, checks: Sequence[tuple[Demand, str, str]], guards: GuardNodes) -> bool:
    """Let a Scan carry one value more, whose making fails: its operands keep the ranks that are known of them."""
    body, results = next(iter(subgraphs(node)), None), [*stacked(node)]
    if body is None or not (checks or results):
        return False
    carried = guards.constant(np.array(0), KIND.INT64)
    for demand, operand, called in checks:
        sizes = _sizes_asked(guards.emit("Shape", [operand]), demand, guards)
        carried = guards.unless(carried, guards.emit("Cast", [sizes], to=KIND.BOOL), called)
    inside = guards.of_another_graph()
    within = after = inside.name()
    for at, axis in results:
        if at < len(body.output):
            sizes = inside.emit("Cast", [_stacked_sizes(body.output[at].name, axis, inside)], to=KIND.BOOL)
            after = inside.unless(after, sizes, f"{STACKED} {at} of Scan {node.name or node.output[0]}")
    after = inside.emit("Identity", [after])
    body.node.extend(inside.nodes)
    body.input.insert(0, scalar(within, KIND.INT64))
    body.output.insert(0, scalar(after, KIND.INT64))
    node.input.insert(0, carried)
    node.output.insert(0, guards.name())
    return True


def _stacked_sizes(result: str, axis: int, guards: GuardNodes) -> str:
    """The sizes of a result behind its axis once it is stacked; all of them where that becomes the second axis.

    There, the first and the second axis change places, and onnxruntime moves either. Nothing is moved to the first.
    """
    sizes = guards.emit("Shape", [result])
    padded = guards.emit("Concat", [sizes, guards.sizes(1)], axis=0)
    if axis > 0:
        return guards.since(padded, axis if axis > 1 else 0)
    if guards.opset < SLICES_FED:
        return padded
    rank = guards.flat(guards.emit("Size", [sizes]))
    place = guards.emit("Add", [rank, guards.sizes(axis + 1)])
    is_first = guards.emit("Cast", [guards.emit("Equal", [place, guards.sizes(0)])], to=KIND.INT64)
    place = guards.emit("Add", [place, guards.emit("Mul", [is_first, rank])])
    is_second = guards.emit("Cast", [guards.emit("Equal", [place, guards.sizes(1)])], to=KIND.INT64)
    place = guards.emit("Sub", [place, is_second])
    return guards.emit("Slice", [padded, place, guards.sizes(LARGEST)])


def _sizes_asked(shape: str, demand: Demand, guards: GuardNodes) -> str:
    """The sizes that a demand is about, of which an operand may lack some."""
    axes = demand.axes
    if axes is None:
        sizes = guards.emit("Concat", [shape, guards.sizes(1)], axis=0)
        return guards.since(sizes, demand.since) if demand.since else sizes
    if axes[0] >= 0:
        shape = guards.emit("Concat", [shape, guards.sizes(*[1] * (axes[-1] + 1))], axis=0)
    return guards.emit("Gather", [shape, guards.sizes(*axes)])
