"""Models of one operator, with what they are fed at some size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.beside_stock import Feeds

__all__ = ["NODES", "Node"]

Array = np.ndarray[Any, Any]
_OPSET, _ML = 20, "ai.onnx.ml"
_random = np.random.default_rng(0)
_words = np.array([f"word{i} of {i % 7}" for i in range(200)], object)


def _floats(*shape: int) -> Array:
    return np.asarray(_random.standard_normal(shape), np.float32)


def _places(most: int, *shape: int) -> Array:
    return _random.integers(0, most, shape)


def _images(size: int) -> Feeds:
    return {"x": _floats(1, 16, 14 * size, 14 * size)}


def _rows(size: int) -> Feeds:
    return {"x": _floats(16 * size, 64 * size)}


def _texts(size: int) -> Feeds:
    return {"x": _words[_places(200, 64 * size * size)]}


def _indexed(size: int, *shape: int) -> Feeds:
    return {**_rows(size), "places": _places(16 * size, *shape)}


def _scattered(size: int) -> Feeds:
    return {**_indexed(size, 8 * size, 1), "updates": _floats(8 * size, 64 * size)}


def _boxes(count: int) -> Array:
    corners = _random.uniform(0, 8, (count, 2, 2))
    return np.concatenate([corners.min(1), corners.max(1)], 1).astype(np.float32)


def _regions(size: int) -> Feeds:
    return {**_images(size), "boxes": _boxes(8 * size), "images": np.zeros(8 * size, np.int64)}


def _candidates(size: int) -> Feeds:
    return {"boxes": _boxes(32 * size * size)[None], "scores": abs(_floats(1, 5, 32 * size * size))}


def _deformed(size: int) -> Feeds:
    offset = _floats(1, 18, 14 * size - 2, 14 * size - 2)
    return {**_images(size), "weight": _floats(16, 16, 3, 3), "offset": offset}


def _sampled(size: int) -> Feeds:
    return {**_images(size), "grid": _floats(1, 14 * size, 14 * size, 2)}


@dataclass(frozen=True)
class Node:
    """A model of one node.

    Attributes:
        fed: gives its operands at a size.
        attributes: of the node.
        held: further operands, which never change.
        outputs: how many there are.
        domain: of the operator.
    """

    fed: Callable[[int], Feeds]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    held: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    domain: str = ""

    def model(self, op_type: str, size: int) -> tuple[bytes, Feeds]:
        """Return the file, and what it is fed."""
        feeds, names = self.fed(size), [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(op_type, [*feeds, *self.held], names, domain=self.domain, **self.attributes)
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in feeds.items()
        ]
        held = [numpy_helper.from_array(np.asarray(number), name) for name, number in self.held.items()]
        outputs = [onnx.ValueInfoProto(name=name) for name in names]
        versions = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_ML, 3)]
        graph = helper.make_graph([node], op_type, inputs, outputs, held)
        return helper.make_model(graph, opset_imports=versions, ir_version=9).SerializeToString(), feeds


_NONE, _TWICE = np.zeros(0, np.float32), np.array([1, 1, 2, 2], np.float32)
_UP = {"region": _NONE, "scales": _TWICE}
_DOWN = {"region": _NONE, "scales": np.array([1, 1, 0.6, 0.4], np.float32)}
_FRAME = {"pads": np.array([0, 0, 3, 3] * 2)}
_THREE = {"kernel_shape": [3, 3]}
_LABELS = {"cats_strings": [*_words], "cats_int64s": [*range(200)]}
NODES: Mapping[str, Node] = {
    **{name: Node(_rows) for name in (
        "Relu", "Exp", "Log", "Sqrt", "Tan", "Acos", "Softplus", "Erf", "Softmax", "Trilu", "NonZero", "IsNaN",
    )},
    **{f"{name} of columns": Node(_rows, held={"axes": np.array([0])}) for name in ("ReduceMax", "ReduceSum")},
    "ReduceLogSumExp": Node(_rows, held={"axes": np.array([1])}),
    "CumSum": Node(_rows, held={"axis": np.array(1)}),
    "TopK": Node(_rows, held={"k": np.array([10])}, outputs=2),
    "Compress": Node(lambda s: {**_rows(s), "wanted": _floats(16 * s) > 0}, {"axis": 0}),
    "ReverseSequence": Node(lambda s: {"x": _floats(16 * s, 8, 16 * s), "lengths": _places(16 * s - 1, 8) + 1}),
    "BitShift": Node(lambda s: {"x": _places(200, 999 * s * s).astype(np.uint8), "by": np.array([2], np.uint8)},
                     {"direction": "LEFT"}),
    "Div": Node(lambda s: {"x": _places(999, 999 * s * s), "y": _places(9, 999 * s * s) + 1}),
    "GatherND": Node(lambda s: _indexed(s, 64 * s, 1)),
    "GatherElements": Node(lambda s: _indexed(s, 16 * s, 64 * s)),
    **{f"ScatterND by {name}": Node(_scattered, {"reduction": name}) for name in ("none", "max")},
    "Einsum": Node(lambda s: {"x": _floats(8, 8 * s, 16), "w": _floats(8, 16, 8 * s)}, {"equation": "bij,bjk->ib"}),
    "Det": Node(lambda s: {"x": _floats(16 * s, 4, 4)}),
    "DFT": Node(lambda s: {"x": _floats(4 * s, 64 * s, 1)}),
    **{f"{name}Pool": Node(_images, _THREE) for name in ("Average", "Max", "Lp")},
    "AveragePool with gaps": Node(_images, {**_THREE, "dilations": [2, 2], "ceil_mode": 1}),
    "MaxPool with places": Node(_images, {**_THREE, "strides": [2, 2]}, outputs=2),
    "MaxUnpool": Node(lambda s: {**_images(s), "at": np.sort(_places(12544 * s * s, 1, 16, 14 * s, 14 * s))},
                      {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "RoiAlign": Node(_regions, {"output_height": 7, "output_width": 7, "sampling_ratio": 2}),
    "NonMaxSuppression": Node(_candidates, held={"most": np.array(100), "overlap": np.float32(0.5)}),
    **{f"Resize {name}": Node(_images, {"mode": name}, _UP) for name in ("nearest", "linear", "cubic")},
    "Resize down": Node(_images, {"mode": "linear"}, _DOWN),
    **{f"GridSample {name}": Node(_sampled, {"mode": name}) for name in ("linear", "cubic")},
    **{f"Pad by {name}": Node(_images, {"mode": name}, _FRAME) for name in ("constant", "reflect", "wrap")},
    "SpaceToDepth": Node(_images, {"blocksize": 2}),
    "DeformConv": Node(_deformed),
    "LRN": Node(_images, {"size": 5}),
    "RegexFullMatch": Node(_texts, {"pattern": "word1.*"}),
    "StringSplit": Node(_texts, {"delimiter": " "}, outputs=2),
    "CategoryMapper": Node(_texts, _LABELS, domain=_ML),
    "Normalizer": Node(_rows, {"norm": "L2"}, domain=_ML),
}  # fmt: skip
"""By operator and what is special of it."""
