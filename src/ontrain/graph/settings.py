"""Inputs that say how operators work: sizes, axes and the like, which a plan has as numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.graph.halves import reads
from ontrain.graph.rebuild import rebuild
from ontrain.graph.subgraphs import all_nodes

__all__ = ["fed_settings", "with_values"]

_EVERY: Mapping[str, frozenset[int]] = {
    "AffineGrid": frozenset({1}),
    "BlackmanWindow": frozenset({0}),
    "CenterCropPad": frozenset({1}),
    "Col2Im": frozenset({1, 2}),
    "Compress": frozenset({1}),
    "ConstantOfShape": frozenset({0}),
    "CumProd": frozenset({1}),
    "CumSum": frozenset({1}),
    "DFT": frozenset({1, 2}),
    "Dropout": frozenset({1, 2}),
    "Expand": frozenset({1}),
    "HammingWindow": frozenset({0}),
    "HannWindow": frozenset({0}),
    "MaxUnpool": frozenset({2}),
    "MelWeightMatrix": frozenset({0, 1, 2, 3, 4}),
    "NonMaxSuppression": frozenset({2}),
    "OneHot": frozenset({1}),
    "Pad": frozenset({1, 3}),
    "Range": frozenset({0, 1, 2}),
    "Reshape": frozenset({1}),
    "Resize": frozenset({1, 2, 3}),
    "STFT": frozenset({1, 3}),
    "Slice": frozenset({1, 2, 3, 4}),
    "Split": frozenset({1}),
    "SplitToSequence": frozenset({1}),
    "Squeeze": frozenset({1}),
    "Tile": frozenset({1}),
    "TopK": frozenset({1}),
    "Trilu": frozenset({1}),
    "Unsqueeze": frozenset({1}),
}
_OF_SHAPE = frozenset({"Shape", "Size"})


def fed_settings(graph: ir.Graph, inputs: Collection[str]) -> list[str]:
    """Return which of these graph inputs the sizes, axes and modes of operators are computed from, by name."""
    wanted: set[ir.Value] = set()
    for node in reversed(list(all_nodes(graph))):
        if node.op_type in _OF_SHAPE:
            continue  # of what it reads only the shape matters, which a plan has anyway
        if not wanted.isdisjoint(node.outputs):
            wanted.update(reads(node))
        elif not node.domain:
            wanted.update(v for i, v in enumerate(node.inputs) if v is not None and i in _positions(node))
    return [v.name for v in graph.inputs if v.name and v.name in inputs and v in wanted]


def _positions(node: ir.Node) -> Collection[int]:
    # The axes of a reduction are its second input.
    return (1,) if node.op_type.startswith("Reduce") else _EVERY.get(node.op_type, ())


def with_values(model: ir.Model, values: Mapping[str, np.ndarray[Any, Any]]) -> ir.Model:
    """Return the model with constants in the place of these inputs.

    Args:
        model: left untouched.
        values: of inputs by name, in their dtype.
    """
    made = rebuild(model)
    for value in list(made.graph.inputs):
        array = values.get(value.name or "")
        if array is not None:
            made.graph.inputs.remove(value)
            value.const_value = ir.tensor(array, name=value.name)
            value.shape = ir.Shape(array.shape)
            made.graph.register_initializer(value)
    return made
