"""Operators whose results are as long as values say."""

from __future__ import annotations

import torch

from ontrain.capture import to_array
from ontrain.errors import ProviderError
from ontrain.inference.stepwise.kernels.registry import Call, kernel
from ontrain.inference.stepwise.values import Value
from ontrain.session import non_zero, unique
from ontrain.stock_node import run_stock

__all__: list[str] = []


@kernel("NonZero")
def _non_zero(call: Call) -> list[Value]:
    return [non_zero(call.inputs[0])]


@kernel("Compress")
def _compress(call: Call) -> list[Value]:
    x, wanted, axis = call.inputs[0], call.inputs[1], call.attributes.get("axis")
    if axis is None:
        x, axis = x.reshape(-1), 0
    places = torch.nonzero(wanted.reshape(-1)).reshape(-1)
    return [torch.index_select(x, axis, places)]


@kernel("Unique")
def _unique(call: Call) -> list[Value]:
    axis, in_order = call.attributes.get("axis"), call.attributes.get("sorted", 1)
    return [*unique(call.inputs[0], axis, in_order=bool(in_order))]


@kernel("Unique", domain="com.microsoft")
def _unique_as_they_come(call: Call) -> list[Value]:
    values, _, places, counts = unique(call.inputs[0], in_order=False)
    return [values, places, counts]


@kernel("NonMaxSuppression")
def _non_max_suppression(call: Call) -> list[Value]:
    """By onnxruntime's kernel: of tens of thousands of boxes each is compared with all that were chosen before it."""
    operands = [None if value is None else to_array(value) for value in call.inputs]
    boxes, scores, overlap = call.inputs[0].shape, call.inputs[1].shape, call.input(3)
    limit = 0.0 if overlap is None else float(overlap.reshape(()))
    if len(boxes) != 3 or len(scores) != 3 or boxes[2] != 4 or boxes[1] != scores[2]:
        raise ProviderError(f"boxes are {list(boxes)}, scores {list(scores)}")
    if not 0 <= limit <= 1:
        raise ProviderError(f"iou_threshold is {limit:g}", way_out="take a number from 0 to 1")
    rows = run_stock("NonMaxSuppression", operands, center_point_box=call.attributes.get("center_point_box", 0))
    return [torch.from_numpy(rows).to(call.inputs[0].device)]
