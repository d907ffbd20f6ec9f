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
    "dense and sparse": (5, lambda a, y: torch.sub(ones(y, 3, 5) * 0.5 + a, a + a * 3, alpha=2) @ y),
    "sparse added in place": (5, lambda a, y: (y.sum() * ones(y, 3, 5)).add_(a) @ y),
    "dense and a product": (3, lambda a, y: (ones(y, 3, 3) + a @ a.t()) @ y),
    "detach": (5, lambda a, y: (a @ y) * (a.detach() @ y)),
    "sparse by sparse": (3, lambda a, y: torch.sparse.mm(a, a.t()).to_dense() @ y),
    "three sparse ones": (5, lambda a, y: (a @ a.t() @ a).coalesce().to_dense() @ y),
    "dense by a product": (3, lambda a, y: y.t() @ (a @ a.t()).detach()),
    "product by a vector": (3, lambda a, y: -(a.detach() @ a.detach().t() * 2.0).t() @ y[:, 0]),
    "addmm of a product": (5, lambda a, y: torch.addmm(y, (a.t() @ a).detach(), y)),
    "sum of all": (5, lambda a, y: torch.sparse.sum(a) * torch.sparse.sum(a.coalesce(), (0, 1)) * a.sum() + y),
    "softmax of rows": (5, lambda a, y: torch.sparse.softmax(a, 1).to_dense() @ y),
    "softmax of columns": (5, lambda a, y: torch.sparse.softmax(a.coalesce(), 0).to_dense() @ y),
    "softmax of a sum": (5, lambda a, y: torch.sparse.softmax(a + a.t().t() * 3, 1).to_dense() @ y),
    "log_softmax": (3, lambda a, y: torch.sparse.log_softmax(a.t(), 1).to_dense() @ y),
    "number of places": (5, lambda a, y: a @ y * a._nnz()),
}


@pytest.mark.sampled(3)
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


def test_products_of_two_sparse_matrices_stay_sparse_where_a_matrix_was_an_input_before():
    class Taking(nn.Module):
        def forward(self, matrix, x):
            return matrix @ x

    matrix = torch.sparse_coo_tensor(INDICES, torch.ones(INDICES.shape[1]), (3, 5))
    torch.testing.assert_close(ORTModule(Taking())(matrix, torch.ones(5, 2)), matrix @ torch.ones(5, 2))
    test_products_and_their_gradients_are_eagers("three sparse ones")


def test_another_number_of_places_trains_as_eagers():
    ours, eager = pair(Made(PRODUCTS["matmul"][1]).double())
    for count in (5, 3, 4):
        x, values = torch.randn(5, 4, dtype=torch.float64), torch.randn(count, dtype=torch.float64)
        for module in (ours, eager):
            module(x, INDICES[:, :count], values).backward()
    assert_same_gradients(ours, eager, rtol=1e-12, atol=1e-14)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (lambda a, y: (a @ a.t()).coalesce().values().sum() + y, "places of a product of two sparse matrices"),
        (lambda a, y: (a + a @ a.t() @ a) @ y, "a sum with a product of two sparse matrices"),
        (lambda a, y: a.coalesce().values().sum() + y, "places of a coalesced matrix"),
        (lambda a, y: a.t().coalesce().indices().sum() + y, "places of a coalesced matrix"),
        (lambda a, y: torch.relu(a) @ y, "relu"),
        (lambda a, y: (a * ones(y, 3, 5)) @ y, "element by element"),
        (lambda a, y: a, "of sparse tensors"),
        (lambda a, y: a @ y / a.coalesce()._nnz(), "how many places a sparse matrix has"),
        (lambda a, y: a @ y * (a * 2)._nnz(), "how many places a sparse matrix has"),
        (lambda a, y: (a * 2)._values().mean() + y, "places of a sparse matrix that forward computes"),
        (lambda a, y: torch.sparse.sum(a, 1).to_dense() + y[:3, 0], "over one dimension"),
        (lambda a, y: torch.sparse.softmax(a @ a.t(), 1).to_dense() @ y[:3], "softmax of a product"),
    ],
    ids=[
        "places of a product",
        "sum with a product",
        "values merged",
        "places sorted",
        "relu",
        "times a tensor",
        "sine of it",
        "number of places merged",
        "number of places scaled",
        "values scaled",
        "sum of rows",
        "softmax of a product",
    ],
)
def test_what_a_graph_has_not_is_refused_by_name(use, reason):
    with pytest.raises(CaptureError, match=reason) as caught:
        ORTModule(Made(use))(torch.randn(5, 4), INDICES, torch.ones(5))
    assert caught.value.way_out
    assert "test_sparse.py" in str(caught.value.source)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("places", [[[0, 1], [1, -1]], [[0, -1], [1, 1]], [[0, 1], [1, 5]], [[0, 3], [1, 1]]], ids=str)
@pytest.mark.parametrize(("rows", "use"), [PRODUCTS["matmul"], PRODUCTS["t"], PRODUCTS["dense by sparse"]])
def test_places_outside_of_the_matrix_are_refused_as_eager_refuses_them(rows, use, places):
    ours, eager = pair(Made(use))
    ours(torch.randn(rows, 4), torch.tensor([[0, 1], [1, 2]]), torch.ones(2))
    for module, kind in ((ours, OntrainError), (eager, RuntimeError)):
        with pytest.raises(kind):
            module(torch.randn(rows, 4), torch.tensor(places), torch.ones(2))


LAYOUTS = {
    "places": lambda a: a.coalesce(), "places twice": lambda a: a, "rows": lambda a: a.to_sparse_csr(),
    "columns": lambda a: a.to_sparse_csc(),
}  # fmt: skip
USES = {
    "sparse.mm": torch.sparse.mm, "matmul": lambda a, y: a @ y, "turned": lambda a, y: a.t() @ y,
    "to_dense": lambda a, y: a.to_dense() @ y, "mean": lambda a, y: (a @ y) / a.size(0),
    "converted": lambda a, y: a.to(y.dtype) @ y * a.dim(), "count of places": lambda a, y: a @ y * a._nnz(),
}  # fmt: skip


def neighbours(size, count):
    """A square matrix, some of whose places occur twice."""
    return torch.sparse_coo_tensor(
        torch.randint(0, size, (2, count)), torch.rand(count, dtype=torch.float64), (size, size), check_invariants=True
    )


class Convolution(nn.Module):
    """Two layers over a graph that the call brings."""

    def __init__(self, use):
        super().__init__()
        self.first, self.second, self.use = nn.Linear(3, 4), nn.Linear(4, 2), use

    def forward(self, x, neighbours):
        h = torch.relu(self.use(neighbours, self.first(x)))
        return self.use(neighbours, self.second(h)).sin().sum()


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:.*captured anew for each shape")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("use", USES)
def test_matrices_of_the_call_train_as_eagers(use, layout):
    ours, eager = pair(Convolution(USES[use]).double())
    for size, count in ((5, 9), (5, 7), (8, 20), (1, 1)):
        x, matrix = torch.randn(size, 3, dtype=torch.float64), LAYOUTS[layout](neighbours(size, count))
        losses = [module(x, matrix) for module in (ours, eager)]
        torch.testing.assert_close(*losses, rtol=1e-9, atol=1e-11)
        for loss in losses:
            loss.backward()
        assert_same_gradients(ours, eager, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("use", "other"), [("sparse.mm", 5), ("matmul", 8)])
def test_matrices_of_other_sizes_are_not_captured_again(use, other):
    module = ORTModule(Convolution(USES[use]).double())
    for size, count in ((5, 9), (5, 7), (other, 20)):
        module(torch.randn(size, 3, dtype=torch.float64), neighbours(size, count))
    assert module._engine.captures == 1


@pytest.mark.parametrize("use", ["sparse.mm", "matmul", "turned"])
def test_gradients_reach_the_values_of_a_matrix_of_the_call(use):
    ours, eager = pair(Convolution(USES[use]).double())
    x, places = torch.randn(5, 3, dtype=torch.float64), neighbours(5, 9)._indices()
    gradients = []
    for module in (ours, eager):
        values = torch.arange(1.0, 10.0, dtype=torch.float64, requires_grad=True)
        module(x, torch.sparse_coo_tensor(places, values, (5, 5))).backward()
        gradients.append(values.grad)
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)


@pytest.mark.filterwarnings("ignore:.*captured anew for each shape")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_linear_layer_takes_a_matrix(layout, bias):
    ours, eager = pair(nn.Linear(6, 2, bias=bias).double())
    for rows in (4, 5):
        matrix = LAYOUTS[layout](neighbours(6, 9).to_dense()[:rows].to_sparse())
        for module in (ours, eager):
            module(matrix).sin().sum().backward()
        assert_same_gradients(ours, eager, rtol=1e-9, atol=1e-11)


def test_a_matrix_that_wants_a_gradient_itself_is_refused():
    with pytest.raises(InputError, match="sparse") as caught:
        ORTModule(Convolution(USES["matmul"]))(torch.randn(5, 3), MATRIX.clone().requires_grad_())
    assert "gradient" in caught.value.reason


def test_values_that_stand_in_another_order_than_that_of_the_places_are_refused():
    module = ORTModule(Convolution(lambda a, y: a @ y * a.values().sum()).double())
    with pytest.raises(CaptureError, match="coalesce"):
        module(torch.randn(5, 3, dtype=torch.float64), neighbours(5, 9).to_sparse_csc())


class Held(nn.Module):
    """A layer, and a matrix that it holds between buffers."""

    def __init__(self, how, matrix):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("before", torch.ones(1))
        if how == "buffer":
            self.register_buffer("matrix", matrix)
        else:
            self.matrix = matrix
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count += self.before
        return (self.matrix @ self.layer(x)).sin().sum()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", ["buffer", "attribute"])
def test_matrices_that_a_module_holds_train_as_eagers(how, layout):
    matrix = LAYOUTS[layout](torch.sparse_coo_tensor(INDICES, torch.arange(1.0, 6.0, dtype=torch.float64), (3, 5)))
    module, eager = (Held(how, matrix).double() for _ in range(2))
    for mine, theirs in zip(module.parameters(), eager.parameters(), strict=True):
        mine.data.copy_(theirs.data)
    ours, held = ORTModule(module), module.matrix
    names = list(eager.state_dict())
    for _ in range(2):
        x = torch.randn(5, 4, dtype=torch.float64)
        for each in (ours, eager):
            each(x).backward()
        assert_same_gradients(ours, eager, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(ours.count, eager.count)
    assert list(ours.state_dict()) == names and module.matrix is held


def test_a_matrix_that_is_written_to_or_replaced_is_read_anew():
    ours, eager = pair(Held("buffer", MATRIX.coalesce()))
    x = torch.randn(5, 4)
    for change in (
        lambda m: None,
        lambda m: m.matrix.mul_(2.0),
        lambda m: m.load_state_dict({**m.state_dict(), "matrix": MATRIX * 3}),
        lambda m: setattr(m, "matrix", MATRIX * 5),
    ):
        with torch.no_grad():
            for module in (ours.module, eager):
                change(module)
        torch.testing.assert_close(ours(x), eager(x))


def test_what_is_sparse_and_no_matrix_of_numbers_is_refused_by_name():
    volume = torch.ones(2, 2, 2).to_sparse()
    with pytest.raises(CaptureError, match="'matrix' is sparse") as caught:
        ORTModule(Held("buffer", volume))(torch.randn(5, 4))
    assert "torch.sparse_coo_tensor" in caught.value.way_out
    with pytest.raises(InputError, match=r"sparse \(torch.sparse_coo, 3 dimensions\)") as caught:
        ORTModule(nn.Linear(2, 2))(volume)
    assert "torch.sparse_coo_tensor" in caught.value.way_out


def test_a_matrix_that_is_trained_is_refused_by_name():
    module = Held("buffer", MATRIX)
    del module.matrix
    module.matrix = nn.Parameter(MATRIX)
    with pytest.raises(CaptureError, match="parameter 'matrix' is sparse"):
        ORTModule(module)(torch.randn(5, 4))


def test_a_matrix_in_the_result_is_refused():
    with pytest.raises(CaptureError, match="is a sparse matrix") as caught:
        ORTModule(Returning())(torch.randn(5, 4), MATRIX)
    assert "to_dense" in caught.value.way_out


class Returning(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, a):
        return self.layer(x), a * 2


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_a_nested_input_is_refused_with_what_to_give_in_its_place(layout):
    nested = torch.nested.nested_tensor([torch.ones(2, 5), torch.ones(3, 5)], layout=layout)
    with pytest.raises(InputError, match="tensor 0 of the call is nested") as caught:
        ORTModule(nn.Linear(5, 2))(nested)
    assert "to_padded_tensor" in caught.value.way_out


def test_whether_a_matrix_is_coalesced_is_asked():
    class Asking(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("matrix", torch.eye(3).to_sparse())

        def forward(self, x):
            known = self.matrix.is_coalesced() and (self.matrix * 2).is_coalesced() and self.matrix.sparse_dim() == 2
            return self.linear(torch.sparse.mm(self.matrix, x.t()).t()) * (2 if known else 1)

    ours, eager = pair(Asking())
    x = torch.randn(2, 3)
    torch.testing.assert_close(ours(x), eager(x))
