"""Operators whose results are as long as values say."""

from __future__ import annotations

import torch

from ontrain.errors import ProviderError
from ontrain.inference.stepwise.kernels.registry import Call, kernel
from ontrain.inference.stepwise.values import Value
from ontrain.session import non_zero, unique

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
    boxes, scores = call.inputs[0], call.inputs[1]
    most = call.number(2)
    overlap, least = call.input(3), call.input(4)
    limit = 0.0 if overlap is None else float(overlap.reshape(()))
    if boxes.dim() != 3 or scores.dim() != 3 or boxes.shape[2] != 4 or boxes.shape[1] != scores.shape[2]:
        raise ProviderError(f"boxes are {list(boxes.shape)}, scores {list(scores.shape)}")
    corners = _corners(boxes, centred=call.attributes.get("center_point_box", 0) == 1)
    rows = []
    for image in range(scores.shape[0]):
        for label in range(scores.shape[1]):
            chosen = _kept(corners[image], scores[image, label], most, limit, None if least is None else least.item())
            rows += [(image, label, place) for place in chosen]
    return [torch.tensor(rows, dtype=torch.int64, device=boxes.device).reshape(-1, 3)]


def _corners(boxes: torch.Tensor, *, centred: bool) -> torch.Tensor:
    """Boxes by their least and greatest corners."""
    if centred:
        middle, half = boxes[..., :2], boxes[..., 2:] / 2
        return torch.cat([middle - half, middle + half], -1)
    a, b = boxes[..., :2], boxes[..., 2:]
    return torch.cat([torch.minimum(a, b), torch.maximum(a, b)], -1)


def _kept(boxes: torch.Tensor, scores: torch.Tensor, most: int, limit: float, least: float | None) -> list[int]:
    """Places of boxes, best first, none of which overlaps a better one by more than `limit`."""
    order = torch.argsort(scores, descending=True, stable=True)
    if least is not None:
        order = order[scores[order] > least]
    boxes = boxes[order]
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    left = torch.ones(len(order), dtype=torch.bool, device=boxes.device)
    chosen: list[int] = []
    while len(chosen) < most and bool(left.any()):
        at = int(left.to(torch.uint8).argmax())
        chosen.append(int(order[at]))
        shared = torch.minimum(boxes[:, 2:], boxes[at, 2:]) - torch.maximum(boxes[:, :2], boxes[at, :2])
        common = shared.clamp(min=0).prod(-1)
        both = area + area[at] - common
        left &= ~((common / both.clamp(min=torch.finfo(both.dtype).tiny)) > limit)
        left[at] = False
    return chosen
