"""Each row-wise operator on packed rows gives the rows of what it gives on all."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from ontrain.functions import inline_all
from ontrain.graph import DOMAIN, new_model, rebuild, verify
from ontrain.operators import OPERATORS, Rows
from ontrain.passes.rows.layout import Layout
from ontrain.passes.rows.operators import find_row_rule
from ontrain.passes.rows.section import Index, Sections, find_section
from tests.passes.rows.sections import B, H, L, case, model

KEPT = np.array([7, 0, 3])


def ids(op, x):
    return op.Cast(op.Abs(x), to=ir.DataType.INT64)


UNARY = (
    "Abs", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu",
    "Mish", "Neg", "Relu", "Round", "Shrink", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Tanh",
)  # fmt: skip


BINARY = ("Add", "Div", "Max", "Mean", "Min", "Mul", "Sub", "Sum")


CASES = [
    *(case(name, lambda op, x, name=name: getattr(op, name)(x), (B, L, H)) for name in UNARY),
    *(case(name, lambda op, x, y, name=name: getattr(op, name)(x, y), (B, L, H), (B, L, H)) for name in BINARY),
    case("Add-bias", lambda op, x, b: op.Add(b, x), (B, L, H), (H,)),
    case("Add-a-place-per-sequence", lambda op, x, b: op.Add(x, b), (B, L, H), (B, 1, H)),
    case("Add-a-place-per-position", lambda op, x, b: op.Add(x, b), (B, L, H), (L, H)),
    case("Add-a-number-per-row", lambda op, x, b: op.Mul(x, b), (B, L, H), (B, L, 1)),
    case("Add-ones-in-front", lambda op, x, b: op.Add(x, b), (B, L, H), (1, 1, H)),
    case("Where", lambda op, x, y: op.Where(op.Greater(x, 0.0), x, y), (B, L, H), (H,)),
    case("Clip", lambda op, x: op.Clip(x, -0.5, 0.5), (B, L, H)),
    case("Hardtanh", lambda op, x: op.composite("Hardtanh", x, op.const(-0.5), op.const(0.5)), (B, L, H)),
    case("Cast", lambda op, x: op.Cast(x, to=ir.DataType.DOUBLE), (B, L, H)),
    case("Pow", lambda op, x: op.Pow(x, 3.0), (B, L, H)),
    case("Detach", lambda op, x: op.composite("Detach", x), (B, L, H)),
    case("Silu", lambda op, x: op.composite("Silu", x), (B, L, H)),
    case("ReplaceNan", lambda op, x: op.composite("ReplaceNan", x, number=0.5), (B, L, H)),
    case("BitwiseAnd", lambda op, x, y: op.Cast(op.BitwiseAnd(ids(op, x), ids(op, y)), to=1), (B, L, H), (H,)),
    case("Dropout", lambda op, x: op.Dropout(x, 0.5, op.const(False)), (B, L, H)),
    case("MatMul", lambda op, x, w: op.MatMul(x, w), (B, L, H), (H, 3)),
    case("Gemm", lambda op, x, w, b: op.Gemm(x, w, b, transB=1), (B * L, H), (3, H), (3,), rows=(B * L,)),
    case("Gemm-added", lambda op, x, w, b: op.Gemm(x, w, b), (B * L, H), (H, 3), (B * L, 3), rows=(B * L,)),
    case("LayerNormalization", lambda op, x, s: op.LayerNormalization(x, s, axis=2), (B, L, H), (H,)),
    case("LayerNormalization-2", lambda op, x, s: op.LayerNormalization(x, s, axis=-2), (B, L, 3, H), (3, H)),
    case("RMSNormalization", lambda op, x, s: op.RMSNormalization(x, s, axis=-1), (B, L, H), (H,)),
    case("Softmax", lambda op, x: op.Softmax(x, axis=2), (B, L, H)),
    case("LogSoftmax", lambda op, x: op.LogSoftmax(x), (B, L, H)),
    *(
        case(f"{n}-{keep}", lambda op, x, n=n, keep=keep: getattr(op, n)(op.Abs(x), [2], keepdims=keep), (B, L, H, 3))
        for n in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2") for keep in (0, 1)
    ),
    case("Reshape-rows", lambda op, x: op.Reshape(x, [B * L, H]), (B, L, H), rows=(B * L,)),
    case("Reshape-heads", lambda op, x: op.Reshape(x, [B, L, 2, H // 2]), (B, L, H)),
    case("Reshape-back", lambda op, x: op.Reshape(x, [B, L, H]), (B * L, 2, H // 2)),
    case("Squeeze", lambda op, x: op.Squeeze(x, [2]), (B, L, 1, H)),
    case("Unsqueeze", lambda op, x: op.Unsqueeze(x, [2]), (B, L, H)),
    case("Flatten", lambda op, x: op.Flatten(x, axis=2), (B, L, H, 2), rows=(B * L,)),
    case("Expand", lambda op, x: op.Expand(x, [B, L, 3, H]), (B, L, 1, H)),
    case("Transpose-behind", lambda op, x: op.Transpose(x, perm=[0, 1, 3, 2]), (B, L, H, 3)),
    case("Transpose-rows", lambda op, x: op.Transpose(x, perm=[1, 0, 2]), (L, B, H)),
    case("Transpose-one-place", lambda op, x: op.Transpose(x, perm=[1, 0, 3, 2]), (1, B * L, H, 3), rows=(B * L,)),
    case("Concat", lambda op, x, y: op.Concat(x, y, axis=2), (B, L, H), (B, L, 3)),
    case("Split", lambda op, x: op.Split(x, [1, 3], axis=-1, outputs=2)[1], (B, L, H)),
    case("Slice-behind", lambda op, x: op.Slice(x, *(np.array([i]) for i in (1, 4, 2, 2))), (B, L, H)),
    case("Slice-rows", lambda op, x: op.Slice(x, np.array([1]), np.array([L + 1]), np.array([1])), (B, L + 2, H)),
    case("Gather-ids", lambda op, w, x: op.Gather(w, ids(op, x)), (4, H), (B, L)),
    case("Embedding", lambda op, w, x: op.composite("Embedding", w, ids(op, x)), (4, H), (B, L)),
]  # fmt: skip


def run(model, feeds):
    return ReferenceEvaluator(ir.to_proto(inline_all(model))).run(None, feeds)[0]


@pytest.mark.parametrize(("make", "shapes", "rows"), CASES)
def test_packed_rows_are_the_rows_of_the_whole(make, shapes, rows, rng):
    old = model(make, shapes)
    root = old.graph.outputs[0].producer()
    layout = Layout.leading(rows)
    section = find_section(old.graph, lambda node, _: [layout] if node is root else None)
    y = root.inputs[0]
    assert section.holds(y), "the operator is not in the section"
    index = Index(B * L, len(KEPT), lambda op: op.const(KEPT))
    new = rebuild(old, Sections(section, index, {root: lambda _, op, node, inputs: [op.identity(inputs[0])]}))
    verify(rebuild(new))
    feeds = {v.name: rng.standard_normal(v.shape.numpy()).astype(np.float32) for v in old.graph.inputs}
    whole, packed = run(old, feeds), run(new, feeds)
    expected = whole.reshape(B * L, *whole.shape[len(rows) :])[KEPT]
    assert packed.shape == expected.shape
    np.testing.assert_allclose(packed, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax", "Hardmax"])
def test_an_operator_along_an_axis_of_rows_reads_other_rows(name, axis):
    old = model(lambda op, x: getattr(op, name)(x, axis=axis), ((B, L, H),))
    root = old.graph.outputs[0].producer()
    section = find_section(old.graph, lambda node, _: [Layout.leading((B, L))] if node is root else None)
    assert not section.packed


def test_every_operator_of_the_table_is_one():
    model = new_model([], "test")
    for domain, op_type in (key for key, record in OPERATORS.items() if record.rows is not Rows.MIXED):
        node = ir.Node(domain, op_type, [], num_outputs=1, graph=model.graph)
        assert domain in ("", DOMAIN) and find_row_rule(node) is not None
