"""Gathering and scattering: kernels give what the operators' bodies give, gradients included."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from ontrain.graph import Builder, new_model
from tests.providers.bodies import compare, lowered_in
from tests.providers.graphs import float_input, run


@lowered_in("indexing")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")


@pytest.mark.parametrize("padding", [-1, 0, 3])
def test_the_padding_row_of_an_embedding_takes_no_gradient(padding):
    dy, ids = (
        float_input("dy", (2, 4, 5)),
        ir.Value(name="ids", shape=ir.Shape((2, 4)), type=ir.TensorType(ir.DataType.INT64)),
    )
    model = new_model([dy, ids], "embedding")
    model.graph.outputs.append(Builder(model.graph).composite("EmbeddingGrad", dy, ids, rows=6, padding_idx=padding))
    weight = torch.zeros(6, 5, requires_grad=True)
    feeds = {"dy": torch.randn(2, 4, 5), "ids": torch.tensor([[0, 3, 3, 5], [0, 1, 3, 0]])}
    rows = torch.nn.functional.embedding(feeds["ids"], weight, padding_idx=None if padding < 0 else padding)
    rows.backward(feeds["dy"])
    (found,) = run(model, feeds)
    torch.testing.assert_close(found, weight.grad)
