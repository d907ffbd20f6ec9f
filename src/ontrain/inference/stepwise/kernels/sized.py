"""Operators whose sizes other nodes compute: run as they come, for a plan would hold for one size alone."""

from __future__ import annotations

import torch

from ontrain.errors import ProviderError
from ontrain.inference.stepwise.kernels.registry import Call, kernel
from ontrain.inference.stepwise.values import Value
from ontrain.operators import slice_places

__all__: list[str] = []


@kernel("Reshape", always=False)
def _reshape(call: Call) -> list[Value]:
    x, shape = call.inputs[0], call.numbers(1) or []
    if not call.attributes.get("allowzero", 0):
        shape = [x.shape[i] if size == 0 else size for i, size in enumerate(shape)]
    if -1 in shape and not x.numel():
        rest = 1
        for size in shape:
            rest *= size if size != -1 else 1
        shape = [0 if size == -1 and rest else size for size in shape]
    return [x.reshape(shape)]


@kernel("Expand", always=False)
def _expand(call: Call) -> list[Value]:
    x = call.inputs[0]
    return [x.expand(torch.broadcast_shapes(x.shape, tuple(call.numbers(1) or ()))).contiguous()]


@kernel("Tile", always=False)
def _tile(call: Call) -> list[Value]:
    return [call.inputs[0].repeat(call.numbers(1) or [])]


@kernel("Slice", always=False)
def _slice(call: Call) -> list[Value]:
    x = call.inputs[0]
    starts, ends = call.numbers(1) or [], call.numbers(2) or []
    axes, steps = call.numbers(3) or list(range(len(starts))), call.numbers(4) or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise ProviderError("a slice has the step 0")
        places = slice_places(start, end, step, x.shape[axis])
        if step > 0:
            x = x[(slice(None),) * (axis % x.dim()) + (slice(places.start, max(places.stop, places.start), step),)]
        else:
            x = x.index_select(axis, torch.tensor(list(places), dtype=torch.int64, device=x.device))
    return [x]


@kernel("Range", always=False)
def _range(call: Call) -> list[Value]:
    start, stop, step = (value.reshape(()) for value in call.inputs[:3])
    if float(step) == 0.0:
        raise ProviderError("a range has the step 0")
    count = max(0, int(torch.ceil((stop - start).double() / step.double())))
    return [(start + torch.arange(count, device=call.device).to(start.dtype) * step).to(start.dtype)]


@kernel("ConstantOfShape", always=False)
def _constant_of_shape(call: Call) -> list[Value]:
    value = call.attributes.get("value")
    filling = torch.zeros(1, device="cpu") if value is None else torch.as_tensor(value.numpy().copy(), device="cpu")
    return [filling.to(call.device).reshape(()).expand(call.numbers(0) or []).contiguous()]


@kernel("TopK", always=False)
def _top_k(call: Call) -> list[Value]:
    x, axis, largest = call.inputs[0], call.attributes.get("axis", -1), call.attributes.get("largest", 1)
    order = torch.argsort(x, dim=axis, descending=bool(largest), stable=True).narrow(axis, 0, call.number(1))
    return [x.gather(axis, order), order]
