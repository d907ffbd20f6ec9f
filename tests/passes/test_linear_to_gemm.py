"""A product with a matrix and its bias become one Gemm, where nothing else needs the product."""

from __future__ import annotations

import pytest

from ontrain.passes import LinearToGemm
from tests.passes.graphs import applied, graph, operators


def test_a_linear_layer_becomes_one_gemm_with_its_bias():
    model = graph(lambda op, x, w, b: op.MatMul(x, op.Transpose(w, perm=[1, 0])) + b, x=[2, 3, 4], w=[5, 4], b=[5])
    rewritten = applied(LinearToGemm(), model, count=1, bitwise=False)
    assert operators(rewritten) == ["Reshape", "Gemm", "Reshape"]
    assert rewritten.graph[1].attributes["transB"].as_int() == 1


def test_a_bias_on_the_left_is_taken_along_too():
    model = graph(lambda op, x, w, b: b + op.MatMul(x, w), x=[6, 4], w=[4, 5], b=[5])
    assert operators(applied(LinearToGemm(), model, count=1, bitwise=False)) == ["Gemm"]


def test_a_product_that_others_read_keeps_its_bias_apart():
    def make(op, x, w, b):
        y = op.MatMul(x, w)
        return y + b, op.Tanh(y)

    rewritten = applied(LinearToGemm(), graph(make, x=[6, 4], w=[4, 5], b=[5]), count=1, bitwise=False)
    assert sorted(operators(rewritten)) == ["Add", "Gemm", "Tanh"]


def test_a_sum_of_two_products_keeps_both():
    model = graph(lambda op, x, w, v: op.MatMul(x, w) + op.MatMul(x, v), x=[6, 4], w=[4, 5], v=[4, 5])
    assert sorted(operators(applied(LinearToGemm(), model, count=2, bitwise=False))) == ["Add", "Gemm", "Gemm"]


def test_a_product_of_batches_is_left_alone():
    model = graph(lambda op, x, y: op.MatMul(x, y), x=[2, 3, 4], y=[2, 4, 5])
    assert operators(applied(LinearToGemm(), model, count=0)) == ["MatMul"]


def test_rows_of_many_axes_are_flattened_for_a_matrix_as_it_lies():
    model = graph(lambda op, x, w: op.MatMul(x, w), x=[2, 3, 4], w=[4, 5])
    rewritten = applied(LinearToGemm(), model, count=1, bitwise=False)
    assert operators(rewritten) == ["Reshape", "Gemm", "Reshape"]
    assert rewritten.graph[1].attributes["transB"].as_int() == 0


@pytest.mark.parametrize("shape", [[1], [6, 1], [6, 5], [1, 5]], ids=str)
def test_what_is_added_is_a_bias_only_if_it_is_one_number_a_column(shape):
    model = graph(lambda op, x, w, b: op.MatMul(x, w) + b, x=[6, 4], w=[4, 5], b=shape)
    assert operators(applied(LinearToGemm(), model, count=1, bitwise=False)) == ["Gemm", "Add"]


def test_a_product_that_is_an_output_keeps_its_bias_apart():
    def make(op, x, w, b):
        y = op.MatMul(x, w)
        return y + b, y

    rewritten = applied(LinearToGemm(), graph(make, x=[6, 4], w=[4, 5], b=[5]), count=1, bitwise=False)
    assert operators(rewritten) == ["Gemm", "Add"]


@pytest.mark.parametrize(("x", "w"), [([4], [4, 5]), ([6, 4], [4]), ([4], [4])], ids=str)
def test_products_of_vectors_are_left_alone(x, w):
    rewritten = applied(LinearToGemm(), graph(lambda op, x, w: op.MatMul(x, w), x=x, w=w), count=0)
    assert operators(rewritten) == ["MatMul"]


def test_a_product_is_taken_along_by_one_of_two_sums_at_most():
    def make(op, x, w, b, c):
        return op.MatMul(x, w) + b + c

    rewritten = applied(LinearToGemm(), graph(make, x=[6, 4], w=[4, 5], b=[5], c=[5]), count=1, bitwise=False)
    assert operators(rewritten) == ["Gemm", "Add"]
