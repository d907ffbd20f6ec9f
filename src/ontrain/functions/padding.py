"""The gradient of a border that repeats what it surrounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder
from ontrain.operators import Value, gather_adjoint

__all__: list[str] = []


def _types(inputs: list[Any], *, shape: Sequence[int] = (), **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    return [(inputs[0].dtype, ir.Shape(list(shape)))]


@composite("PadGrad", infer=_types)
def pad_grad(
    op: Builder, dy: Value, *, shape: Sequence[int] = (), pads: Sequence[int] = (), mode: str = "reflect"
) -> Value:  # fmt: skip
    """The inner part of dy and what flows back from the copies in the border, for an input of `shape`.

    The pads, before all axes and after them, are not negative; `mode` is Pad's: reflect, edge or wrap.
    """
    rank = len(shape)
    for axis, size in enumerate(shape):
        before, after = pads[axis], pads[rank + axis]
        if before or after:
            source = np.pad(np.arange(size), (before, after), mode=mode)  # type: ignore[call-overload]
            dy = gather_adjoint(op, dy, op.const(source.astype(np.int64)), axis, size)
    return dy
