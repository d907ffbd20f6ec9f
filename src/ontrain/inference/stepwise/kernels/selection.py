"""Operators whose results are as long as values say."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ontrain.capture import to_array
from ontrain.errors import ProviderError
from ontrain.inference.stepwise.kernels.registry import Call, kernel
from ontrain.inference.stepwise.values import Value
from ontrain.session import non_zero, unique

__all__: list[str] = []

Array = np.ndarray[Any, Any]
_BLOCK = 128
"""Boxes that are compared with each other at once."""


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
    device = call.inputs[0].device
    boxes, scores = to_array(call.inputs[0]), to_array(call.inputs[1])
    most = call.number(2)
    overlap, least = call.input(3), call.input(4)
    limit = 0.0 if overlap is None else float(overlap.reshape(()))
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape[2] != 4 or boxes.shape[1] != scores.shape[2]:
        raise ProviderError(f"boxes are {list(boxes.shape)}, scores {list(scores.shape)}")
    if not 0 <= limit <= 1:
        raise ProviderError(f"iou_threshold is {limit:g}", way_out="take a number from 0 to 1")
    corners = _corners(boxes, centred=call.attributes.get("center_point_box", 0) == 1)
    rows = []
    for image in range(scores.shape[0]):
        for label in range(scores.shape[1]):
            places = _by_score(scores[image, label], None if least is None else least.item())
            chosen = _apart(corners[image][places], most, limit)
            rows += [(image, label, place) for place in places[chosen].tolist()]
    return [torch.tensor(rows, dtype=torch.int64, device=device).reshape(-1, 3)]


def _corners(boxes: Array, *, centred: bool) -> Array:
    """Boxes by their least and greatest corners."""
    if centred:
        middle, half = boxes[..., :2], boxes[..., 2:] / 2
        return np.concatenate([middle - half, middle + half], -1)
    a, b = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], -1)


def _by_score(scores: Array, least: float | None) -> Array:
    """Places of the scores above `least`, best first, and of equal ones the first place first."""
    places = np.arange(len(scores)) if least is None else np.flatnonzero(scores > least)
    return places[np.argsort(-scores[places], kind="stable")]


def _apart(boxes: Array, most: int, limit: float) -> list[int]:
    """Positions of boxes, in order, none of which overlaps an earlier one by more than `limit`."""
    chosen: list[int] = []
    for start in range(0, len(boxes), _BLOCK):
        free = ~_overlap(boxes[start : start + _BLOCK], boxes[chosen], limit).any(1)
        block = start + np.flatnonzero(free)
        hides, free = _overlap(boxes[block], boxes[block], limit), np.ones(len(block), bool)
        for i, place in enumerate(block.tolist()):
            if len(chosen) >= most:
                return chosen
            if free[i]:
                chosen.append(place)
                free &= ~hides[i]
    return chosen


def _overlap(boxes: Array, others: Array, limit: float) -> Array:
    """Whether each box shares more than `limit` of its union with each of the others."""
    a, b = boxes[:, None], others[None]
    with np.errstate(all="ignore"):  # a box may have infinite corners, or none
        width, height = (
            np.maximum(np.minimum(a[..., i + 2], b[..., i + 2]) - np.maximum(a[..., i], b[..., i]), 0) for i in (0, 1)
        )
        common = width * height
        both = _area(a) + _area(b) - common
        result: Array = common / np.maximum(both, np.finfo(both.dtype).tiny) > limit
    return result


def _area(boxes: Array) -> Array:
    result: Array = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    return result
