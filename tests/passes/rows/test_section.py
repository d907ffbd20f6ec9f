"""A section ends where rows are mixed."""

from __future__ import annotations

import numpy as np
import pytest

from ontrain.passes.rows.layout import Layout
from ontrain.passes.rows.section import find_section
from tests.passes.rows.sections import B, H, L, case, model

MIXING = [
    case("MatMul-rows-inside", lambda op, w, x: op.MatMul(w, op.Reshape(x, [B * L, H])), (B * L, B * L), (B, L, H)),
    case("Softmax-over-rows", lambda op, x: op.Softmax(x, axis=1), (B, L, H)),
    case("LayerNormalization-over-rows", lambda op, x, s: op.LayerNormalization(x, s, axis=1), (B, L, H), (L, H)),
    case("CumSum", lambda op, x: op.CumSum(x, op.const(np.array(1))), (B, L, H)),
    case("Gemm-transposed", lambda op, x, w: op.Gemm(x, w, transA=1), (H, B * L), (H, 3), rows=(B * L,)),
    case("Concat-rows", lambda op, x, y: op.Concat(x, y, axis=1), (B, L - 1, H), (B, 1, H)),
]


@pytest.mark.parametrize(("make", "shapes", "rows"), MIXING)
def test_what_mixes_rows_stops_a_section(make, shapes, rows):
    old = model(make, shapes)
    root = old.graph.outputs[0].producer()
    section = find_section(old.graph, lambda node, _: [Layout.leading(rows)] if node is root else None)
    assert not section.packed
