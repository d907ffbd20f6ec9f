"""Gathering and scattering: kernels give what the operators' bodies give, gradients included."""

from __future__ import annotations

import numpy as np
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
    (gradient,) = run(model, feeds)
    torch.testing.assert_close(gradient, weight.grad)


def _ids(*shape: int) -> ir.Value:
    return ir.Value(name="ids", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.INT64))


@pytest.mark.parametrize("low", [0, -6], ids=["from the start", "from both ends"])
def test_indices_may_count_from_the_end(low):
    """The same graph takes both kinds, as numpy does."""
    x, ids, few = float_input("x", (3, 6, 4)), _ids(3, 6, 4), _ids(5)
    few.name = "few"
    model = new_model([x, ids, few], "indices")
    op = Builder(model.graph)
    rows = op.Gather(x, few, axis=1)
    model.graph.outputs.extend([
        rows, op.GatherElements(x, ids, axis=1), op.ScatterElements(x, ids, x, axis=1, reduction="add"),
        op.ScatterElements(x, ids, x, axis=1, reduction="max"),
    ])  # fmt: skip
    feeds = {
        "x": torch.randn(3, 6, 4), "ids": torch.randint(low, 6, (3, 6, 4)), "few": torch.randint(low, 6, (5,)),
    }  # fmt: skip
    array, places = feeds["x"].numpy(), feeds["ids"].numpy()
    grid = np.indices(places.shape)
    added, greatest = array.astype(np.float64), array.copy()
    np.add.at(added, (grid[0], places, grid[2]), array)
    np.maximum.at(greatest, (grid[0], places, grid[2]), array)
    wanted = [array[:, feeds["few"].numpy()], array[grid[0], places, grid[2]], added.astype(np.float32), greatest]
    for result, expected in zip(run(model, feeds), wanted, strict=True):
        torch.testing.assert_close(result, torch.from_numpy(expected))


@pytest.mark.parametrize("outside", [-7, 6])
def test_an_index_outside_is_refused(outside):
    x, ids = float_input("x", (6, 2)), _ids(2, 2)
    model = new_model([x, ids], "outside")
    model.graph.outputs.append(Builder(model.graph).GatherElements(x, ids, axis=0))
    with pytest.raises(RuntimeError, match="out of bounds"):
        run(model, {"x": torch.randn(6, 2), "ids": torch.tensor([[0, 1], [2, outside]])})


@pytest.mark.parametrize("shape, axis", [((3, 6, 4), 1), ((6,), 0), ((6, 1), 0), ((2, 6), -1)])
def test_indices_repeated_along_all_other_axes_move_slices(shape, axis):
    """The rows that the same elements would be moved to one by one."""
    axis %= len(shape)
    line = torch.tensor([4, -1, 4, 0, 2])
    x, few, spread = float_input("x", shape), _ids(5), [5 if i == axis else size for i, size in enumerate(shape)]
    updates = float_input("updates", spread)
    model = new_model([x, few, updates], "lines")
    op = Builder(model.graph)
    ids = op.Expand(op.Reshape(few, [5 if i == axis else 1 for i in range(len(shape))]), spread)
    model.graph.outputs.extend([
        op.GatherElements(x, ids, axis=axis), op.ScatterElements(x, ids, updates, axis=axis, reduction="add")
    ])  # fmt: skip
    feeds = {"x": torch.randn(shape), "ids": line, "updates": torch.randn(spread)}
    rows, added = run(model, feeds)
    torch.testing.assert_close(rows, feeds["x"].index_select(axis, line % 6))
    torch.testing.assert_close(added, feeds["x"].index_add(axis, line % 6, feeds["updates"]))
