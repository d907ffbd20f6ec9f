"""Indices as torch's kernels take them, where ONNX's operators read negative ones otherwise."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.capture.context import AtenBuilder
from ontrain.operators import Value

__all__ = ["from_start"]


def from_start(op: AtenBuilder, indices: Value) -> Value:
    """Return indices as int64, of which none counts from the end.

    Raises:
        CaptureError: a constant one does.
    """
    indices = op.cast(indices, ir.DataType.INT64)
    if indices.const_value is None:
        return op.memo(("from start", indices), lambda: op.composite("FromStart", indices))
    numbers = indices.const_value.numpy()
    if (numbers < 0).any():
        raise op.refuse(
            f"an index is {int(numbers.min())}", "indices of this operator count from 0", "index by x[indices], which "
            "counts negative ones from the end",
        )  # fmt: skip
    return indices
