"""What queries may see, read off a mask's graph, against the mask's values themselves."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from ontrain.graph import Builder, Role, extract, new_model, set_role
from ontrain.passes.rows.masks import find_mask

B, H, L = 3, 2, 5
CAUSAL = np.tril(np.ones((1, 1, L, L), bool))
LOW, HIDDEN = -1e30, -1e8


def padding(op, mask):
    return op.Reshape(op.Cast(mask, to=ir.DataType.BOOL), [B, 1, 1, L])


MASKS = {
    "padding": lambda op, mask, table: op.Where(padding(op, mask), 0.0, LOW),
    "padding the other way round": lambda op, mask, table: op.Where(op.Not(padding(op, mask)), LOW, 0.0),
    "padding and causality": lambda op, mask, table: op.Where(op.And(op.const(CAUSAL), padding(op, mask)), 0.0, LOW),
    "padding by arithmetic": lambda op, mask, table: op.Mul(
        op.Sub(1.0, op.Reshape(op.Cast(mask, to=ir.DataType.FLOAT), [B, 1, 1, L])), float(np.finfo(np.float32).min)
    ),
    "two sums": lambda op, mask, table: op.Add(
        op.Where(op.const(CAUSAL), 0.0, LOW), op.Where(padding(op, mask), 0.0, LOW)
    ),
    "learned positions": lambda op, mask, table: op.Where(padding(op, mask), table, -np.float32(np.inf)),
    "clamped": lambda op, mask, table: op.Max(
        op.Add(table, op.Where(padding(op, mask), 0.0, LOW)), float(np.finfo(np.float32).min)
    ),
    "pairs": lambda op, mask, table: op.Where(
        op.And(padding(op, mask), op.Reshape(op.Cast(mask, to=ir.DataType.BOOL), [B, 1, L, 1])), 0.0, LOW
    ),
    "each head its own": lambda op, mask, table: op.Where(
        op.And(padding(op, mask), op.const(np.stack([CAUSAL[0, 0], CAUSAL[0, 0].T])[None])), 0.0, LOW
    ),
}  # fmt: skip


def graph(make):
    mask = set_role(ir.Value(name="mask", shape=ir.Shape([B, L]), type=ir.TensorType(ir.DataType.INT64)), Role.INPUT)
    table = ir.Value(name="table", shape=ir.Shape([1, H, L, L]), type=ir.TensorType(ir.DataType.FLOAT))
    model = new_model([mask, set_role(table, Role.PARAMETER)], "test")
    bias = make(Builder(model.graph), mask, table)
    model.graph.outputs.append(bias)
    return model, bias


def evaluate(model, **feeds):
    return ReferenceEvaluator(ir.to_proto(model)).run(None, feeds)


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_hides_what_its_values_hide(name, rng):
    model, bias = graph(MASKS[name])
    mask = find_mask(model.graph, bias)
    assert mask is not None
    values = [v for v, _ in mask.computed]
    part = extract(model, [v for v in model.graph.inputs if v.name == "mask"], values)
    op = Builder(part.graph)
    copies = dict(zip(values, part.graph.outputs, strict=True))
    part.graph.outputs[:] = [op.identity(mask.seen(op, copies, (B, L))), op.identity(mask.sees(op, copies))]
    table = rng.standard_normal((1, H, L, L)).astype(np.float32)
    for pattern in (np.ones((B, L)), np.zeros((B, L)), rng.integers(0, 2, (B, L)), rng.integers(0, 2, (B, L))):
        pattern = pattern.astype(np.int64)
        (bias_values,) = evaluate(model, mask=pattern, **({"table": table} if "table" in _names(model) else {}))
        visible = np.broadcast_to(bias_values > HIDDEN, (B, H, L, L))
        seen, sees = evaluate(part, mask=pattern)
        np.testing.assert_array_equal(seen, visible.any((1, 2)))
        np.testing.assert_array_equal(np.broadcast_to(sees, (B, L)), visible.any(3).all(1))


def _names(model):
    return {v.name for v in model.graph.inputs}


def test_padding_costs_no_square_of_the_length():
    model, bias = graph(MASKS["padding and causality"])
    mask = find_mask(model.graph, bias)
    assert mask is not None
    values = [v for v, _ in mask.computed]
    part = extract(model, [v for v in model.graph.inputs if v.name == "mask"], values)
    op = Builder(part.graph)
    mask.seen(op, dict(zip(values, part.graph.outputs, strict=True)), (B, L))
    assert max(np.prod(v.shape.numpy()) for node in op.nodes for v in node.outputs) == B * L


@pytest.mark.parametrize(
    "make",
    [
        lambda op, mask, table: op.Where(op.Greater(table, 0.0), 0.0, LOW),
        lambda op, mask, table: op.Where(op.And(padding(op, mask), op.Greater(table, 0.0)), 0.0, LOW),
    ],
)
def test_a_mask_that_depends_on_parameters_is_left_alone(make):
    model, bias = graph(make)
    assert find_mask(model.graph, bias) is None


@pytest.mark.parametrize("penalty", [-10.0, -1e3, -1e5, -1e8])
@pytest.mark.parametrize("chosen", [False, True], ids=["added", "chosen"])
def test_a_penalty_that_scores_could_outweigh_hides_nothing(penalty, chosen):
    def make(op, mask, table):
        if chosen:
            return op.Where(padding(op, mask), table, penalty)
        return op.Add(table, op.Where(padding(op, mask), 0.0, penalty))

    model, bias = graph(make)
    mask = find_mask(model.graph, bias)
    values = [v for v, _ in mask.computed]
    part = extract(model, [v for v in model.graph.inputs if v.name == "mask"], values)
    op = Builder(part.graph)
    seen = mask.seen(op, dict(zip(values, part.graph.outputs, strict=True)), (B, L))
    part.graph.outputs[:] = [op.identity(seen)]
    assert evaluate(part, mask=np.zeros((B, L), np.int64))[0].all()
