"""Sequences of tensors that a file makes only to take tensors out of them.

torch's exporter writes `chunk` and `split` so, and a captured graph holds tensors alone. Source: SplitToSequence,
SequenceConstruct, SequenceAt and ConcatFromSequence in https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.capture.onnx_file.site import Site
from ontrain.errors import GraphError
from ontrain.graph import describe, evaluate, every_node, source_of

__all__ = ["take_sequences_apart"]

_Item = Callable[[int], ir.Value | None]
"""Gives the tensor at a place of a sequence, which may count from the end; None if there is no way to it."""
_LAST = np.iinfo(np.int64).max


def take_sequences_apart(graph: ir.Graph) -> None:
    """Replace sequences whose every reader takes the tensor of a constant place, or joins them all, in place.

    Others stay as they are.

    Raises:
        GraphError: a place is none of the sequence; names the node.
    """
    for node in list(every_node(graph)):
        if not node.domain and isinstance(node.graph, ir.Graph) and node.op_type in _MAKERS:
            _take_apart(node, Site(node, node.graph, trains=True))


def _take_apart(maker: ir.Node, site: Site) -> None:
    sequence = maker.outputs[0]
    readers = [use.node for use in sequence.uses()]
    if sequence.is_graph_output() or not all(_place(node) is not None or _joins(node, maker) for node in readers):
        return
    item = _MAKERS[maker.op_type](site)
    for reader in readers:
        place = _place(reader)
        tensor = _concatenated(reader, maker) if place is None else item(place)
        if tensor is None:
            return  # the others stay, and read the sequence no more
        _replace(reader, tensor)
    site.graph.remove(maker, safe=True)


def _replace(reader: ir.Node, tensor: ir.Value) -> None:
    assert isinstance(reader.graph, ir.Graph)
    old = reader.outputs[0]
    if old.is_graph_output():
        tensor = Site(reader, reader.graph, trains=True).emit("Identity", tensor)
        tensor.name = old.name
    ir.convenience.replace_all_uses_with([old], [tensor], replace_graph_outputs=True)
    reader.graph.remove(reader, safe=True)


def _joins(reader: ir.Node, maker: ir.Node) -> bool:
    construct = maker.op_type == "SequenceConstruct" and len(maker.inputs) > 0
    return construct and reader.op_type == "ConcatFromSequence" and not reader.domain


def _place(reader: ir.Node) -> int | None:
    """The constant place at which a node takes a tensor out of a sequence."""
    if reader.op_type != "SequenceAt" or reader.domain:
        return None
    place = _constant(reader.inputs[1])
    return int(place.item()) if place is not None and place.size == 1 else None


def _constant(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    if value is None:
        return None
    producer = value.producer()
    if producer is not None:
        return evaluate(producer)[0] if producer.op_type == "Constant" and not producer.domain else None
    return value.const_value.numpy() if value.const_value is not None and not value.is_graph_input() else None


def _constructed(site: Site) -> _Item:
    return lambda place: site.node.inputs[_checked(site.node, place, len(site.node.inputs))]


def _split(site: Site) -> _Item:
    node, x, axis = site.node, site.input(0), site.get("axis", 0)
    if not site.has(1):
        one_axis = site.get("keepdims", 1)
        return lambda place: site.emit("Gather", x, site.const([place] if one_axis else place), axis=axis)
    split = _constant(site.input(1))
    sizes = _sizes(split, x, axis)
    if sizes is not None:
        parts = site.emit_several("Split", x, site.const(sizes), count=len(sizes), axis=axis)
        return lambda place: parts[_checked(node, place, len(parts))]
    length = 0 if split is None or split.ndim else int(split)

    def part(place: int) -> ir.Value | None:
        """Of a number of parts that is not known, those that count from the beginning; the last may be shorter."""
        if length < 1 or place < 0:
            return None
        bounds = [site.const([n]) for n in (length * place, min(length * (place + 1), _LAST), axis)]
        return site.emit("Slice", x, *bounds)

    return part


_MAKERS: dict[str, Callable[[Site], _Item]] = {"SplitToSequence": _split, "SequenceConstruct": _constructed}


def _sizes(split: np.ndarray[Any, Any] | None, x: ir.Value | None, axis: int) -> list[int] | None:
    """The sizes of the parts, if they are known: stated, or those of a stated whole."""
    if split is None:
        return None
    if split.ndim:
        return [int(size) for size in split]
    shape, size = () if x is None or x.shape is None else x.shape.dims, int(split)
    total = shape[axis] if -len(shape) <= axis < len(shape) else None
    if not isinstance(total, int) or size < 1:
        return None
    return [min(size, total - start) for start in range(0, total, size)]


def _checked(node: ir.Node, place: int, count: int) -> int:
    if -count <= place < count:
        return place
    raise GraphError(
        f"tensor {place} is asked of a sequence of {count}",
        node=describe(node),
        source=source_of(node),
        way_out="export the model anew; the file may be damaged",
    )


def _concatenated(reader: ir.Node, maker: ir.Node) -> ir.Value:
    assert isinstance(reader.graph, ir.Graph)
    site = Site(reader, reader.graph, trains=True)
    axis, tensors = site.get("axis"), maker.inputs
    if site.get("new_axis", 0):
        at = site.const([axis])
        tensors = tuple([site.emit("Unsqueeze", tensor, at) for tensor in tensors])
    return site.emit("Concat", *tensors, axis=axis)
