"""onnxruntime's fused operators are written out in graphs that are served."""

from __future__ import annotations

import numpy as np

from ontrain.functions import inline_all
from ontrain.passes import run_passes
from ontrain.passes.expand_contributed import ExpandContributed
from ontrain.passes.serving import Serving, serve
from tests.passes.graphs import applied, graph, operators


def block(op, x, skip, gamma, beta, bias):
    y = op.call("com.microsoft", "SkipLayerNormalization", [x, skip, gamma, beta], {"epsilon": 1e-5})
    return op.call("com.microsoft", "BiasGelu", [y, bias], {})


SHAPES = {"x": [2, 3, 4], "skip": [2, 3, 4], "gamma": [4], "beta": [4], "bias": [4]}


def test_what_they_consist_of_gives_the_same_numbers():
    model = applied(ExpandContributed(), graph(block, **SHAPES), count=2, bitwise=False)
    assert operators(model) == ["Add", "LayerNormalization", "Add", "Gelu"]


def test_attention_becomes_the_composite_that_row_passes_know():
    def make(op, x, weights, bias):
        mask = op.const(np.array([[1, 1, 0], [1, 1, 1]], np.int32))
        return op.call("com.microsoft", "Attention", [x, weights, bias, mask], {"num_heads": 2})

    model = applied(
        ExpandContributed(), graph(make, x=[2, 3, 4], weights=[4, 12], bias=[12]), count=1, bitwise=False
    )  # fmt: skip
    assert [node.domain for node in model.graph if node.op_type == "Attention"] == ["ontrain"]
    assert "Attention" not in operators(inline_all(model))


def test_graphs_that_are_trained_keep_them():
    model = graph(block, **SHAPES)
    assert operators(run_passes(model, [ExpandContributed()])[0]) == operators(model)
    serve(model, Serving())
    assert "BiasGelu" not in operators(run_passes(model, [ExpandContributed()])[0])


def test_a_graph_without_them_is_not_rebuilt():
    model = graph(lambda op, x: op.Exp(op.Tanh(x)), x=[3])
    assert ExpandContributed().apply(model) == (model, 0)
