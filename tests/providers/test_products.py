"""The products that a compiled program makes are those of the graph, with their sizes, layouts and operations."""

from __future__ import annotations

from collections import Counter

from ontrain.graph import Builder, new_model
from ontrain.providers import get_provider
from ontrain.providers.torch.products import Product
from tests.providers.graphs import float_input


def test_products_are_counted_by_size_and_layout():
    x, w, v = float_input("x", (2, 3, 4)), float_input("w", (5, 4)), float_input("v", (2, 5, 6))
    model = new_model([x, w, v], "products")
    op = Builder(model.graph)
    rows = op.Reshape(x, [6, 4])
    twice = [op.Gemm(rows, w, transB=1) for _ in range(2)]
    batched = op.MatMul(op.Reshape(op.Add(*twice), [2, 3, 5]), v)
    model.graph.outputs.append(op.Relu(batched))
    provider = get_provider("TorchExecutionProvider")
    products = provider.compile(model, provider.create_state([])).products
    linear = Product(1, 6, 5, 4, left=(4, 1), right=(1, 4), result=(5, 1), dtype="float32")
    pairs = Product(2, 3, 6, 5, left=(5, 1), right=(6, 1), result=(6, 1), dtype="float32")
    assert products == Counter({linear: 2, pairs: 1})
    assert linear.flops == 2 * 6 * 5 * 4 and pairs.flops == 2 * 2 * 3 * 6 * 5
