"""Indices out of range: refused where PyTorch refuses them, counted from the end where PyTorch counts so."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ontrain import CaptureError, OntrainError
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule

ROWS, COLUMNS = 5, 4
RIGHT, WRONG = [0, 2, 1], {"-1": [0, -1, 1], "size": [0, ROWS, 1], "-size": [0, -ROWS, 1], "-size-1": [0, -ROWS - 1, 1]}


def rows(index):
    """An index for each column, in memory of its own: kernels look at repeated ones in another way."""
    return index[:, None].expand(-1, COLUMNS).contiguous()


def written(x, index):
    x = x.clone()
    x[index] = x[:3] * 2
    return x


def unpooled(function, x, index, rank):
    """Two planes of ROWS elements from three columns."""
    ones = (1,) * (rank - 1)
    places = index.expand(2, 3).contiguous().view(2, *ones, 3)
    return function(x[:3, :2].T.reshape(2, *ones, 3), places, (*ones, 2), output_size=(*ones, ROWS))


FROM_START = {
    "gather": lambda x, i: torch.gather(x, 0, rows(i)),
    "gather of columns": lambda x, i: torch.gather(x.T, 1, rows(i).T),
    "gather of a vector": lambda x, i: torch.gather(x[:, 0], 0, i),
    "scatter": lambda x, i: torch.scatter(x, 0, rows(i), x[:3] * 2),
    "scatter of a number": lambda x, i: torch.scatter(x, 0, rows(i), 2.0),
    "scatter_add": lambda x, i: torch.scatter_add(x, 0, rows(i), x[:3] * 2),
    "scatter_add of lines": lambda x, i: torch.scatter_add(x, 0, i[:, None].expand(-1, COLUMNS), x[:3] * 2),
    "scatter_reduce": lambda x, i: torch.scatter_reduce(x, 0, rows(i), x[:3] * 2, "prod"),
    "scatter_reduce to the mean": lambda x, i: torch.scatter_reduce(
        x, 0, rows(i), x[:3] * 2, "mean", include_self=False
    ),
    "index_select": lambda x, i: torch.index_select(x, 0, i),
    "index_select of columns": lambda x, i: torch.index_select(x.T, 1, i),
    "index_add": lambda x, i: torch.index_add(x, 0, i, x[:3] * 2, alpha=3),
    "index_add to a vector": lambda x, i: torch.index_add(x[:, 0], 0, i, x[:3, 0] * 2),
    "index_copy": lambda x, i: torch.index_copy(x, 0, i, x[:3] * 2),
    "index_reduce": lambda x, i: torch.index_reduce(x, 0, i, x[:3] * 2, "prod"),
    "take_along_dim of all": lambda x, i: torch.take_along_dim(x, i),
    "embedding": lambda x, i: F.embedding(i, x, padding_idx=1),
    "embedding_bag": lambda x, i: F.embedding_bag(i[None], x, mode="sum"),
    "one_hot": lambda x, i: F.one_hot(i, ROWS).to(x.dtype) @ x,
    "cross_entropy": lambda x, i: F.cross_entropy(x.T[:3], i),
    "multi_margin_loss": lambda x, i: F.multi_margin_loss(x.T[:3], i, weight=torch.arange(1.0, 6.0).double()),
    "nll_loss of a weighted class": lambda x, i: F.nll_loss(x.T[:3], i, x.new_tensor([1, 2, 3, 4, 5]), ignore_index=3),
    "cross_entropy, smoothed": lambda x, i: F.cross_entropy(x.T[:3], i, label_smoothing=0.2),
    "bincount": lambda x, i: torch.bincount(i, minlength=ROWS)[:ROWS].to(x.dtype) @ x,
    "max_unpool1d": lambda x, i: unpooled(F.max_unpool1d, x, i, 1),
    "max_unpool2d": lambda x, i: unpooled(F.max_unpool2d, x, i, 2),
    "max_unpool3d": lambda x, i: unpooled(F.max_unpool3d, x, i, 3),
}
FROM_EITHER_END = {
    "x[index]": lambda x, i: x[i],
    "x[:, index]": lambda x, i: x.T[:, i],
    "x[index, index]": lambda x, i: x[i, i.clamp(0, COLUMNS - 1)],
    "x[index] = y": written,
    "take": lambda x, i: torch.take(x[:, 0], i),
    "take_along_dim": lambda x, i: torch.take_along_dim(x, rows(i), 0),
    "take_along_dim of one column": lambda x, i: torch.take_along_dim(x, i[:, None], 0),
    "put": lambda x, i: torch.Tensor.put(x[:, 0], i, x[:3, 0] * 2, accumulate=True),
    "index_fill": lambda x, i: torch.index_fill(x, 0, i, 3.0),
    "index_fill of columns": lambda x, i: torch.index_fill(x.T, 1, i, 3.0),
    "index_put": lambda x, i: x.index_put((i,), x[:3] * 2, accumulate=True),
}
UNREFUSED = {("bincount", "size"), ("take_along_dim of all", "size")}
"""No mistakes: there are more counts then, and more elements than rows."""


class Indexed(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.linspace(-1, 1, ROWS * COLUMNS).double().view(ROWS, COLUMNS))

    def forward(self, x, index):
        return self.function(x + self.weight, index)


def outcome(module, index):
    """The result and the parameter's gradient."""
    module.zero_grad()
    y = module(torch.arange(ROWS * COLUMNS).double().view(ROWS, COLUMNS).cos(), torch.tensor(index))
    y.square().sum().backward()
    return y.detach().clone(), module.weight.grad.clone()


def assert_eagers(function, index, ours):
    for mine, theirs in zip(outcome(ours, index), outcome(Indexed(function), index), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@functools.cache
def trained(name):
    """An ORTModule of a function, captured once for all indices that it gets."""
    return ORTModule(Indexed({**FROM_START, **FROM_EITHER_END}[name]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", FROM_START)
def test_what_counts_from_the_start_refuses_all_others(name, wrong):
    ours = trained(name)
    assert_eagers(FROM_START[name], RIGHT, ours)
    if (name, wrong) in UNREFUSED:
        assert_eagers(FROM_START[name], WRONG[wrong], ours)
        return
    with pytest.raises((IndexError, RuntimeError)):
        outcome(Indexed(FROM_START[name]), WRONG[wrong])
    for _ in range(2):
        with pytest.raises(OntrainError, match=r"(?s)test_indices.py:.*self.function"):
            outcome(ours, WRONG[wrong])
    assert_eagers(FROM_START[name], RIGHT, ours)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", FROM_EITHER_END)
def test_what_counts_from_either_end_gives_what_pytorch_gives(name, wrong):
    ours = trained(name)
    assert_eagers(FROM_EITHER_END[name], RIGHT, ours)
    if wrong in ("-1", "-size"):
        assert_eagers(FROM_EITHER_END[name], WRONG[wrong], ours)
        return
    if "take_along_dim" not in name:  # there PyTorch takes the remainder by the size
        with pytest.raises(IndexError):
            outcome(Indexed(FROM_EITHER_END[name]), WRONG[wrong])
    with pytest.raises(OntrainError, match=r"(?s)test_indices.py:.*self.function"):
        outcome(ours, WRONG[wrong])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("provider", ["OnnxRuntimeExecutionProvider", "ReferenceExecutionProvider"])
@pytest.mark.parametrize(
    "name",
    [
        "gather",
        "scatter_add",
        "index_select",
        "index_copy",
        "embedding",
        "embedding_bag",
        "max_unpool2d",
        "cross_entropy",
        "cross_entropy, smoothed",
        "nll_loss of a weighted class",
    ],
)
def test_every_provider_refuses_a_negative_index(name, provider):
    ours = ORTModule(Indexed(FROM_START[name]), provider=provider)
    assert_eagers(FROM_START[name], RIGHT, ours)
    with pytest.raises(OntrainError, match="index"):
        outcome(ours, WRONG["-1"])


def test_a_negative_index_names_the_input_that_holds_it():
    ours = ORTModule(Indexed(FROM_START["index_select"]))
    with pytest.raises(OntrainError, match="input 'index' holds index -1, allowed is 0 to 4"):
        outcome(ours, WRONG["-1"])
    either = ORTModule(Indexed(FROM_EITHER_END["x[index]"]))
    with pytest.raises(OntrainError, match="input 'index' holds index -6, allowed is -5 to 4"):
        outcome(either, WRONG["-size-1"])


@pytest.mark.parametrize("provider", ["TorchExecutionProvider", "OnnxRuntimeExecutionProvider"])
def test_a_trainer_refuses_a_negative_index_in_training_and_evaluation(provider):
    function = FROM_START["gather"]
    desc = {
        "inputs": [("x", [ROWS, COLUMNS]), ("index", [3])],
        "outputs": [("loss", [], True)],
    }
    model = Indexed(lambda x, i: function(x, i).square().mean()).float()
    trainer = ORTTrainer(model, desc, optim.SGDConfig(lr=0.1), None, {"device": {"id": "cpu"}, "provider": provider})
    x = torch.ones(ROWS, COLUMNS)
    trainer.train_step(x, torch.tensor(RIGHT))
    before = trainer.parameter("weight")
    for step in (trainer.train_step, trainer.eval_step):
        with pytest.raises(OntrainError, match="index"):
            step(x, torch.tensor(WRONG["-1"]))
    assert torch.equal(trainer.parameter("weight"), before)


def test_a_constant_that_counts_from_the_end_is_refused_when_captured():
    index = torch.tensor([[0, -1, 1, 2]])
    ours = ORTModule(Indexed(lambda x, _: torch.gather(x, 0, index)))
    with pytest.raises(CaptureError, match="an index is -1"):
        outcome(ours, RIGHT)


def test_indices_that_a_mask_chooses_are_refused_as_well():
    def chosen(x, index):
        return torch.index_select(x, 0, index[index != 2])

    ours = ORTModule(Indexed(chosen))
    assert_eagers(chosen, RIGHT, ours)
    with pytest.raises(OntrainError, match="index"):
        outcome(ours, WRONG["-1"])


def test_one_index_without_axes_selects_one_row():
    def first(x, index):
        return torch.index_select(x, 0, index[1])

    assert_eagers(first, RIGHT, ORTModule(Indexed(first)))


def test_repeats_below_zero_are_refused():
    def repeated(x, index):
        return torch.repeat_interleave(x[:3], index, 0)

    ours = ORTModule(Indexed(repeated))
    assert_eagers(repeated, RIGHT, ours)
    for wrong in ([3, -1, 1], [0, -1, 1], [-1, 2, 2]):
        with pytest.raises(RuntimeError, match="negative"):
            outcome(Indexed(repeated), wrong)
        with pytest.raises(OntrainError):
            outcome(ours, wrong)


def test_a_label_below_the_mark_of_no_label_is_refused():
    def loss(x, index):
        return F.multilabel_margin_loss(x[:, :3], index.expand(ROWS, 3))

    ours = ORTModule(Indexed(loss))
    assert_eagers(loss, [0, -1, 1], ours)
    with pytest.raises(OntrainError, match="index"):
        outcome(ours, [0, -2, 1])


def test_a_number_that_fills_takes_the_gradient_of_all_places():
    class Filled(nn.Module):
        def __init__(self):
            super().__init__()
            self.number = nn.Parameter(torch.tensor(2.0).double())

        def forward(self, x, index):
            return x.index_fill(1, index, self.number) * torch.arange(20).double().view(5, 4)

    ours, eager = ORTModule(Filled()), Filled()
    x = torch.ones(5, 4).double().requires_grad_()
    results = []
    for module in (ours, eager):
        x.grad = None
        y = module(x, torch.tensor([1, 3, 1]))
        y.square().sum().backward()
        results.append((y.detach(), x.grad, module.number.grad))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)
