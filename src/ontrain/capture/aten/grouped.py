"""Products of groups of rows with a matrix each, as mixtures of experts call them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture.aten.registry import aten
from ontrain.capture.aten.view import sliced
from ontrain.capture.context import AtenBuilder
from ontrain.operators import Value

__all__: list[str] = []


# transformers wraps its own loop over groups in an operator with the same meaning, for dtypes that torch's lacks.
@aten("_grouped_mm", "transformers::grouped_mm_fallback")
def grouped_mm(
    op: AtenBuilder, x: Value, w: Value, offs: Value | None = None, bias: Value | None = None,
    out_dtype: torch.dtype | None = None,
) -> Value:  # fmt: skip
    """y[t] = x[t] w[g] for the rows t of group g: x [T, K] sorted by group, w [G, K, N], offs [G] where groups end.

    Which row meets which matrix is data, so each matrix sees all rows, those of other groups as zeros: G times the
    products of one group. Source: torch.nn.functional.grouped_mm.
    """
    if len(op.input_shape(0)) != 2 or len(op.input_shape(1)) != 3 or bias is not None or offs is None:
        raise op.refuse(
            "a grouped product of other operands than rows and a matrix for each group",
            "only [rows, in] by [groups, in, out] with offsets has a translation",
            "use torch.bmm, or a loop over groups",
        )  # fmt: skip
    ends = op.Cast(offs, to=ir.DataType.INT64)
    starts = op.Concat(op.const(np.zeros(1, np.int64)), sliced(op, ends, 0, 0, -1), axis=0)
    rows = op.Unsqueeze(op.counted(op.input_shape(0)[0]), [0])
    after, before = op.GreaterOrEqual(rows, op.Unsqueeze(starts, [1])), op.Less(rows, op.Unsqueeze(ends, [1]))
    member = op.Unsqueeze(op.Cast(op.And(after, before), to=x.dtype), [2])
    return op.cast(op.ReduceSum(op.MatMul(op.Unsqueeze(x, [0]) * member, w), [0], keepdims=0), op.dtype)
