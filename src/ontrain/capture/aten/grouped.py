"""Products of groups of rows with a matrix each, as mixtures of experts call them."""

from __future__ import annotations

import onnx_ir as ir
import torch

from ontrain.capture.aten.registry import aten
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

    Source: torch.nn.functional.grouped_mm.
    """
    if len(op.input_shape(0)) != 2 or len(op.input_shape(1)) != 3 or bias is not None or offs is None:
        raise op.refuse(
            "a grouped product of other operands than rows and a matrix for each group",
            "only [rows, in] by [groups, in, out] with offsets has a translation",
            "use torch.bmm, or a loop over groups",
        )  # fmt: skip
    return op.cast(op.composite("GroupedMatMul", x, w, op.Cast(offs, to=ir.DataType.INT64)), op.dtype)
