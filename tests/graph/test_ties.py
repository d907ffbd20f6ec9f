"""Of equal scores torch.topk takes others than the standard's TopK: a module gets eager's, a file the first."""

import copy

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

from ontrain.graph import Builder, new_model, order_ties_as_torch, orders_ties_as_torch
from ontrain.providers import get_provider
from ontrain.training.ortmodule import ORTModule


class Indexer(nn.Module):
    """Takes the values of the highest scores, of which many are zero."""

    def __init__(self, k, largest, sorted):
        super().__init__()
        self.scores, self.values = nn.Linear(6, 40), nn.Linear(6, 40)
        self.options = dict(k=k, dim=-1, largest=largest, sorted=sorted)

    def forward(self, x):
        scores = self.scores(x).relu()
        places = (scores if self.options["largest"] else -scores).topk(**self.options).indices
        return self.values(x).gather(-1, places).square().sum(), places


@pytest.mark.sampled(3)
@pytest.mark.parametrize("k", [3, 15])
@pytest.mark.parametrize("sorted", [True, False])
@pytest.mark.parametrize("largest", [True, False])
def test_equal_scores_are_chosen_as_in_eager(k, largest, sorted):
    eager = Indexer(k, largest, sorted).double()
    ours = ORTModule(copy.deepcopy(eager))
    for rows in (4, 7):
        x = torch.randn(rows, 6, dtype=torch.float64)
        (loss, places), (expected, expected_places) = ours(x), eager(x)
        assert torch.equal(places, expected_places)
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
        loss.backward(), expected.backward()
    torch.testing.assert_close(ours.module.values.weight.grad, eager.values.weight.grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("marked", [False, True])
def test_equal_elements_come_in_order_where_nothing_says_otherwise(marked):
    x = np.zeros((2, 50), np.float32)
    value = ir.Value(name="x", shape=ir.Shape(x.shape), type=ir.TensorType(ir.DataType.FLOAT))
    op = Builder(new_model([value], "ties").graph)
    values, places = op.TopK(value, op.const(np.array([20], np.int64)), axis=-1, largest=1, sorted=0, outputs=2)
    if marked:
        order_ties_as_torch(values)
    assert orders_ties_as_torch(values.producer()) is marked
    op.graph.outputs.append(places)
    runtime = get_provider("TorchExecutionProvider", "cpu")
    results = runtime.compile(ir.Model(op.graph, ir_version=10), runtime.create_state([])).run({"x": x})
    chosen = torch.from_numpy(x).topk(20, -1, True, False).indices.numpy()
    first = np.broadcast_to(np.arange(20), (2, 20))
    assert not np.array_equal(chosen, first)
    np.testing.assert_array_equal(np.sort(results[places.name]) if not marked else results[places.name],
                                  first if not marked else chosen)  # fmt: skip
