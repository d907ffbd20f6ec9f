"""Linear layers in graphs of open sizes."""

from __future__ import annotations

import pytest

from ontrain.passes.inference import FuseMatMulAdd, TransposeWeights
from tests.passes.inference.weighted import applied, operators, random, weighted

ROWS = {"x": ["batch", 4]}
TOKENS = {"x": ["batch", "length", 4]}


def test_a_product_of_matrices_takes_its_bias_along():
    def make(op, x, w, b):
        return b + op.MatMul(x, op.Transpose(w, perm=[1, 0]))

    model = applied(FuseMatMulAdd(), weighted(make, ROWS, {"w": random(6, 4), "b": random(6)}), count=1)
    assert operators(model) == ["Gemm"] and model.graph[0].attributes["transB"].as_int() == 1


def test_a_matrix_as_it_lies_is_taken_so():
    model = weighted(lambda op, x, w, b: op.MatMul(x, w) + b, ROWS, {"w": random(4, 6), "b": random(6)})
    assert operators(applied(FuseMatMulAdd(), model, count=1)) == ["Gemm"]


@pytest.mark.parametrize(("fed", "bias"), [(TOKENS, (6,)), (ROWS, (1, 6)), (ROWS, (1,)), (ROWS, (3, 6))], ids=str)
def test_more_axes_and_other_biases_are_left_alone(fed, bias):
    model = weighted(lambda op, x, w, b: op.MatMul(x, w) + b, fed, {"w": random(4, 6), "b": random(*bias)})
    assert operators(applied(FuseMatMulAdd(), model, count=0)) == ["MatMul", "Add"]


def test_weights_are_transposed_once_and_keep_their_name():
    def make(op, x, w):
        turned = op.Transpose(w, perm=[1, 0])
        return op.MatMul(x, turned), op.MatMul(op.Tanh(x), op.Transpose(w, perm=[1, 0]))

    model = applied(TransposeWeights(), weighted(make, TOKENS, {"w": random(6, 4)}), count=2)
    assert sorted(operators(model)) == ["MatMul", "MatMul", "Tanh"]
    assert [(v.name, v.shape.numpy()) for v in model.graph.inputs[1:]] == [("w", (4, 6))]


def test_weights_that_are_read_otherwise_too_are_not_stored_twice():
    def make(op, x, w):
        return op.MatMul(x, op.Transpose(w, perm=[1, 0])), op.Tanh(w)

    model = applied(TransposeWeights(), weighted(make, TOKENS, {"w": random(6, 4)}), count=0)
    assert sorted(operators(model)) == ["MatMul", "Tanh", "Transpose"]
