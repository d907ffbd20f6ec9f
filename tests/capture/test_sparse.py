"""Sparse matrices that forward makes, and what it multiplies by them: losses and gradients are eager PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ontrain.errors import CaptureError, InputError, OntrainError
from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import assert_same_gradients, pair

INDICES = torch.tensor([[0, 1, 2, 2, 1], [1, 0, 4, 1, 0]])  # one place twice
MATRIX = torch.sparse_coo_tensor(torch.tensor([[0, 1, 2], [1, 0, 4]]), torch.tensor([1.0, 2.0, 3.0]), (3, 5))


class Made(nn.Module):
    """`use(a, y)` of a sparse [3, 5] matrix and the result of a layer."""

    def __init__(self, use):
        super().__init__()
        self.layer, self.use = nn.Linear(4, 2), use

    def forward(self, x, indices, values):
        return self.use(torch.sparse_coo_tensor(indices, values, (3, 5)), self.layer(x)).sin().sum()


def ones(y, *shape):
    return torch.ones(*shape, dtype=y.dtype)


PRODUCTS = {
    "sparse.mm": (5, lambda a, y: torch.sparse.mm(a, y)),
    "matmul": (5, lambda a, y: a @ y),
    "mm": (5, lambda a, y: torch.mm(a, y)),
    "spmm": (5, lambda a, y: torch.spmm(a, y)),
    "mv": (5, lambda a, y: torch.mv(a, y[:, 0])),
    "matmul, vector": (5, lambda a, y: a @ y[:, 0]),
    "sparse.addmm": (5, lambda a, y: torch.sparse.addmm(ones(y, 3, 2), a, y, beta=0.5, alpha=2.0)),
    "addmm": (5, lambda a, y: torch.addmm(ones(y, 3, 2), a, y)),
    "t": (3, lambda a, y: torch.sparse.mm(a.t(), y)),
    "transpose": (3, lambda a, y: a.transpose(0, 1) @ y),
    "dense by sparse": (3, lambda a, y: y.t() @ a),
    "coalesce": (5, lambda a, y: a.coalesce() @ y),
    "to_dense": (5, lambda a, y: a.to_dense() @ y),
    "scaled": (5, lambda a, y: -(a * 2.5 / 1.5) @ y),
    "sum": (5, lambda a, y: torch.sub(a + a, a * 0.3, alpha=2) @ y),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_and_their_gradients_are_eagers(name):
    rows, use = PRODUCTS[name]
    ours, eager = pair(Made(use).double())
    x = torch.randn(rows, 4, dtype=torch.float64)
    gradients = []
    for module in (ours, eager):
        values = torch.tensor([1.0, 2.0, 3.0, 0.5, -1.0], dtype=torch.float64, requires_grad=True)
        loss = module(x, INDICES, values)
        loss.backward()
        gradients.append((loss.detach(), values.grad))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)
    assert_same_gradients(ours, eager, rtol=1e-12, atol=1e-14)


def test_another_number_of_places_trains_as_eagers():
    ours, eager = pair(Made(PRODUCTS["matmul"][1]).double())
    for count in (5, 3, 4):
        x, values = torch.randn(5, 4, dtype=torch.float64), torch.randn(count, dtype=torch.float64)
        for module in (ours, eager):
            module(x, INDICES[:, :count], values).backward()
    assert_same_gradients(ours, eager, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (lambda a, y: (a @ a.t()).to_dense().sum() + y, "two sparse matrices"),
        (lambda a, y: torch.relu(a) @ y, "relu"),
        (lambda a, y: (a * ones(y, 3, 5)) @ y, "element by element"),
        (lambda a, y: a, "of sparse tensors"),
    ],
    ids=["sparse by sparse", "relu", "times a tensor", "sine of it"],
)
def test_what_a_graph_has_not_is_refused_by_name(use, reason):
    with pytest.raises(CaptureError, match=reason) as caught:
        ORTModule(Made(use))(torch.randn(5, 4), INDICES, torch.ones(5))
    assert caught.value.way_out
    assert "test_sparse.py" in str(caught.value.source)


@pytest.mark.parametrize("places", [[[0, 1], [1, -1]], [[0, -1], [1, 1]], [[0, 1], [1, 5]], [[0, 3], [1, 1]]], ids=str)
@pytest.mark.parametrize(("rows", "use"), [PRODUCTS["matmul"], PRODUCTS["t"], PRODUCTS["dense by sparse"]])
def test_places_outside_of_the_matrix_are_refused_as_eager_refuses_them(rows, use, places):
    ours, eager = pair(Made(use))
    ours(torch.randn(rows, 4), torch.tensor([[0, 1], [1, 2]]), torch.ones(2))
    for module, kind in ((ours, OntrainError), (eager, RuntimeError)):
        with pytest.raises(kind):
            module(torch.randn(rows, 4), torch.tensor(places), torch.ones(2))


class Held(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        if how == "buffer":
            self.register_buffer("matrix", MATRIX)
        elif how == "rows":
            self.register_buffer("matrix", MATRIX.to_sparse_csr())
        else:
            self.matrix = MATRIX

    def forward(self, x):
        return (self.matrix @ self.layer(x)).sum()


@pytest.mark.parametrize("how", ["buffer", "rows", "attribute"])
def test_sparse_state_is_refused_by_its_name(how):
    with pytest.raises(CaptureError, match="'matrix' is sparse") as caught:
        ORTModule(Held(how))(torch.randn(5, 4))
    assert "torch.sparse_coo_tensor" in caught.value.way_out


def test_a_sparse_input_is_refused_with_what_to_give_in_its_place():
    module = ORTModule(nn.Linear(5, 2))
    with pytest.raises(InputError, match="sparse") as caught:
        module(MATRIX)
    assert "torch.sparse_coo_tensor" in caught.value.way_out


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_a_nested_input_is_refused_with_what_to_give_in_its_place(layout):
    nested = torch.nested.nested_tensor([torch.ones(2, 5), torch.ones(3, 5)], layout=layout)
    with pytest.raises(InputError, match="tensor 0 of the call is nested") as caught:
        ORTModule(nn.Linear(5, 2))(nested)
    assert "to_padded_tensor" in caught.value.way_out
