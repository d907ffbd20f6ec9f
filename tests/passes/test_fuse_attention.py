"""Attention that a file spells out becomes one operator, in graphs that are served alone."""

from __future__ import annotations

import numpy as np
import pytest

from ontrain.passes import run_passes
from ontrain.passes.fuse_attention import FuseAttention
from ontrain.passes.serving import Serving, serve
from tests.passes.graphs import applied, graph, operators, values

Q, K, V = [2, 3, 4, 8], [2, 3, 5, 8], [2, 3, 5, 6]
TURN = [0, 1, 3, 2]


def shaped(make, **more):
    return graph(make, q=Q, k=K, v=V, **more)


def number(value):
    return np.float32(value)


def plain(op, q, k, v):
    return op.MatMul(op.Softmax(op.MatMul(q, op.Transpose(k, perm=TURN)) * number(0.3), axis=-1), v)


def quotient(op, q, k, v):
    return op.MatMul(op.Softmax(op.MatMul(q, op.Transpose(k, perm=TURN)) / number(3.0), axis=3), v)


def scaled_before(op, q, k, v):
    return op.MatMul(op.Softmax(op.MatMul(q * number(0.5), op.Transpose(k, perm=TURN) * number(0.5)), axis=-1), v)


def from_rows(op, q, k, v):
    by_row = op.Transpose(k, perm=[0, 2, 1, 3])
    return op.MatMul(op.Softmax(op.MatMul(q, op.Transpose(by_row, perm=[0, 2, 3, 1])), axis=-1), v)


def one_axis_for_batch_and_heads(op, q, k, v):
    turned = op.Transpose(op.Reshape(k, [-1, 5, 8]), perm=[0, 2, 1])
    return op.MatMul(op.Softmax(op.MatMul(q, op.Reshape(turned, [2, 3, 8, 5])), axis=-1), v)


@pytest.mark.parametrize("make", [plain, quotient, scaled_before, from_rows, one_axis_for_batch_and_heads])
def test_a_formula_becomes_the_operator(make):
    fused = applied(FuseAttention(), shaped(make), count=1, bitwise=False)
    assert operators(fused).count("Attention") == 1 and "Softmax" not in operators(fused)
    assert {"Transpose", "Reshape", "Mul"} & {*operators(fused)} == ({"Transpose"} if make is from_rows else set())


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("shape", [[2, 1, 1, 5], [4, 5], [5], [2, 3, 4, 5]], ids=str)
def test_a_bias_comes_along(first, shape):
    def make(op, q, k, v, bias):
        scores = op.MatMul(q, op.Transpose(k, perm=TURN)) * number(0.3)
        return op.MatMul(op.Softmax(bias + scores if first else scores + bias, axis=-1), v)

    fused = applied(FuseAttention(), shaped(make, bias=shape), count=1, bitwise=False)
    assert operators(fused)[-1] == "Attention" and len(fused.graph[-1].inputs[3].shape) in (2, 4)


def guarded(op, q, k, v, bias):
    probabilities = op.Softmax(op.MatMul(q, op.Transpose(k, perm=TURN)) + bias, axis=-1)
    return op.MatMul(op.Where(op.IsNaN(probabilities), op.const(number(0.0)), probabilities), v)


def test_rows_that_see_no_key_are_zeros_where_the_file_makes_them_so():
    def make(op, q, k, v, mask):
        bias = op.Where(op.Greater(mask, op.const(number(0.0))), op.const(number(0.0)), op.const(number(-np.inf)))
        hides_all = np.zeros((2, 1, 4, 5), np.float32)
        hides_all[0, 0, 2] = -np.inf
        return guarded(op, q, k, v, bias + op.const(hides_all))

    fused = applied(FuseAttention(), shaped(make, mask=[2, 1, 1, 5]), count=1, bitwise=False)
    assert "IsNaN" not in operators(fused) and operators(fused)[-2:] == ["Attention", "Mul"]


def test_a_guard_costs_nothing_where_no_row_is_hidden_by_infinity():
    def make(op, q, k, v, mask):
        low = number(np.finfo(np.float32).min)
        return guarded(
            op, q, k, v, op.Where(op.Greater(mask, op.const(number(0.0))), op.const(number(0.0)), op.const(low))
        )

    fused = applied(FuseAttention(), shaped(make, mask=[2, 1, 1, 5]), count=1, bitwise=False)
    assert operators(fused)[-1] == "Attention"


def test_probabilities_that_others_read_are_left_alone():
    def make(op, q, k, v):
        probabilities = op.Softmax(op.MatMul(q, op.Transpose(k, perm=TURN)), axis=-1)
        return op.MatMul(probabilities, v), probabilities

    assert "Attention" not in operators(applied(FuseAttention(), shaped(make), count=0))


@pytest.mark.parametrize(
    "shapes",
    [
        {"q": [3, 4, 8], "k": [3, 5, 8], "v": [3, 5, 6]}, {"q": Q, "k": [2, 1, 5, 8], "v": V},
        {"q": Q, "k": [1, 1, 5, 8], "v": [1, 1, 5, 6]},
    ],
)  # fmt: skip
def test_other_ranks_and_operands_that_broadcast_are_left_alone(shapes):
    def make(op, q, k, v):
        turn = TURN if len(q.shape) == 4 else [0, 2, 1]
        return op.MatMul(op.Softmax(op.MatMul(q, op.Transpose(k, perm=turn)), axis=-1), v)

    assert "Attention" not in operators(applied(FuseAttention(), graph(make, **shapes), count=0))


def test_a_softmax_over_another_axis_is_none_of_attention():
    def make(op, q, k, v):
        return op.MatMul(op.Softmax(op.MatMul(q, op.Transpose(k, perm=TURN)), axis=2), v)

    assert "Attention" not in operators(applied(FuseAttention(), shaped(make), count=0))


@pytest.mark.parametrize("heads", [None, 2], ids=["four axes", "three axes"])
@pytest.mark.parametrize("mask", [None, "bool", "added"])
def test_the_standards_operator_becomes_the_composite(heads, mask):
    shapes = {"q": Q, "k": K, "v": [2, 3, 5, 8]} if heads is None else dict.fromkeys("qkv", [2, 5, 8])
    keys = 5

    def make(op, q, k, v, added=None):
        if mask == "bool":
            added = op.Greater(added, op.const(number(0.0)))
        attributes = {} if heads is None else {"q_num_heads": heads, "kv_num_heads": heads}
        return op.Attention(q, k, v, added, **attributes)

    more = {} if mask is None else {"added": [2, 1, 1, keys]}
    fused = applied(FuseAttention(), graph(make, **shapes, **more), count=1, bitwise=False)
    assert [node.domain for node in fused.graph if node.op_type == "Attention"] == ["ontrain"]


def test_a_row_of_the_standards_operator_that_sees_no_key_is_zeros():
    def make(op, q, k, v):
        seen = np.ones((2, 1, 4, 5), bool)
        seen[1, 0, 2] = False
        return op.Attention(q, k, v, op.And(op.const(seen), op.Greater(op.ReduceMax(op.Abs(q)), op.const(number(-1)))))

    shapes = {"q": Q, "k": K, "v": [2, 3, 5, 8]}
    applied(FuseAttention(), graph(make, **shapes), count=1, bitwise=False)
    (y,) = values(FuseAttention().apply(graph(make, **shapes))[0])
    assert not y[1, :, 2].any() and y[1, :, 1].all()


@pytest.mark.parametrize("attributes", [{"is_causal": 1}, {"softcap": 2.0}], ids=str)
def test_what_the_composite_does_not_express_is_left_alone(attributes):
    model = graph(lambda op, q, k, v: op.Attention(q, k, v, **attributes), q=Q, k=K, v=[2, 3, 5, 8])
    assert [n.domain for n in applied(FuseAttention(), model, count=0).graph if n.op_type == "Attention"] == [""]


def test_only_graphs_that_are_served_are_rewritten():
    model = shaped(plain)
    assert [report.name for report in run_passes(model, [FuseAttention()])[1]] == []
    serve(model, Serving())
    fused, reports = run_passes(model, [FuseAttention()])
    assert [(report.name, report.changed) for report in reports] == [("FuseAttention", 1)]
    assert "Attention" in operators(fused)
