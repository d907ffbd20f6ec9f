"""What forward writes to Python objects, under ORTTrainer: its graph of whole steps repeats no writes."""

import copy
import types

import pytest
import torch
from torch import nn

from ontrain.errors import CaptureError
from ontrain.training import ORTTrainer, optim

DESCRIPTION = {"inputs": [("x", ["rows", 4])], "outputs": [("loss", [], True)]}
SEEN: dict[str, torch.Tensor] = {}


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.items, self.helper = nn.Linear(4, 3), [], types.SimpleNamespace(hidden=None, calls=0)
        self.reference, self.mean, self.first, self.mode, self.rows = None, torch.ones(3), True, "a", None

    def loss(self, x):
        return self.layer(x).square().mean()


class Loss(Base):
    def forward(self, x):
        y = self.layer(x)
        self.items.append(y)
        self.helper.hidden = y
        SEEN["y"] = y
        return y.square().mean()


def test_no_tensor_of_a_trace_stays_in_an_object():
    model = Loss()
    trainer = ORTTrainer(model, DESCRIPTION, optim.SGDConfig(lr=0.1))
    with pytest.warns(UserWarning, match="stays as it was: a graph of whole steps repeats no writes") as told:
        for _ in range(2):
            trainer.train_step(torch.randn(2, 4))
    named = " ".join(str(warning.message) for warning in told)
    assert all(name in named for name in ("a list", "attribute 'hidden' of SimpleNamespace", "entry 'y'"))
    assert (model.items, model.helper.hidden, SEEN) == ([], None, {})


class Writes(Base):
    def forward(self, x):
        self.mean.add_(1.0)
        return self.layer(x).square().mean() * self.mean.mean()


def test_the_trainer_refuses_writes_to_a_tensor_that_is_no_buffer_and_leaves_it_as_it_was():
    model = Writes()
    with pytest.raises(CaptureError, match=r"writes to a tensor of shape \[3\] that is no buffer"):
        ORTTrainer(model, DESCRIPTION, optim.SGDConfig(lr=0.1)).train_step(torch.randn(2, 4))
    assert model.mean.tolist() == [1.0, 1.0, 1.0]


class FirstIsDouble(Base):
    def forward(self, x):
        weight = 2.0 if self.first else 1.0
        self.first = False
        return self.loss(x) * weight


class KeepsTheFirstBatch(Base):
    def forward(self, x):
        if self.reference is None:
            self.reference = x.mean().detach()
        return (self.layer(x) - self.reference).square().mean()


class KeepsTheFirstIds(Base):
    def forward(self, x):
        if self.reference is None:
            self.reference = (x > 0).sum()
        return self.loss(x) * self.reference


class KeepsTheFirstNorm(Base):
    def forward(self, x):
        if self.reference is None:
            self.reference = self.layer.weight.detach().norm()
        return self.loss(x) / self.reference


class KeepsTheFirstSize(Base):
    def forward(self, x):
        if self.rows is None:
            self.rows = x.shape[0]
        return self.layer(x).square().sum() / self.rows


class Alternates(Base):
    def forward(self, x):
        self.mode = "b" if self.mode == "a" else "a"
        return self.loss(x) * (2.0 if self.mode == "a" else 1.0)


class Anneals(Base):
    def forward(self, x):
        self.helper.calls += 1
        return self.loss(x) / self.helper.calls


@pytest.mark.parametrize(
    ("kind", "way_out"),
    [
        (FirstIsDouble, "call the model once"),
        (KeepsTheFirstBatch, "call the model once"),
        (KeepsTheFirstIds, "call the model once"),
        (KeepsTheFirstNorm, "call the model once"),
        (KeepsTheFirstSize, "call the model once"),
        (Alternates, "register_buffer"),
        (Anneals, "register_buffer"),
    ],
)
def test_the_trainer_refuses_what_later_steps_would_compute_otherwise(kind, way_out):
    trainer = ORTTrainer(kind(), DESCRIPTION, optim.SGDConfig(lr=0.1))
    with pytest.raises(CaptureError, match="forward computes with the attribute") as caught:
        trainer.train_step(torch.randn(2, 4))
    assert way_out in caught.value.way_out


@pytest.mark.parametrize("kind", [FirstIsDouble, KeepsTheFirstBatch, KeepsTheFirstNorm, KeepsTheFirstSize])
def test_the_trainer_trains_a_model_that_has_begun(kind):
    model, batches = kind(), [torch.randn(rows, 4) for rows in (2, 3, 2)]
    model(batches[0])
    eager = copy.deepcopy(model)
    trainer, optimizer = (
        ORTTrainer(model, DESCRIPTION, optim.SGDConfig(lr=0.1)),
        torch.optim.SGD(eager.parameters(), 0.1),
    )
    for x in batches:
        optimizer.zero_grad()
        loss = eager(x)
        loss.backward()
        optimizer.step()
        assert float(trainer.train_step(x)) == pytest.approx(loss.item(), rel=1e-5)


class TellsItsSize(Base):
    def forward(self, x):
        self.rows = x.shape[0]
        return self.layer(x).square().sum() / self.rows


def test_a_size_that_each_call_writes_anew_is_none_of_the_first_batch():
    trainer, eager = ORTTrainer(model := TellsItsSize(), DESCRIPTION, optim.SGDConfig(lr=0.0)), copy.deepcopy(model)
    for rows in (2, 3):
        x = torch.randn(rows, 4)
        assert float(trainer.train_step(x)) == pytest.approx(eager(x).item(), rel=1e-5)


class KeepsPositions(Base):
    def forward(self, x):
        if self.reference is None:
            self.reference, self.rows = torch.arange(4.0), 4
        return self.loss(x * self.reference)


class Counts(Base):
    def forward(self, x):
        self.helper.calls += 1
        return self.loss(x)


@pytest.mark.parametrize("kind", [KeepsPositions, Counts])
@pytest.mark.filterwarnings("ignore:forward")
def test_the_trainer_takes_tables_of_sizes_and_numbers_that_nothing_depends_on(kind):
    model, x = kind(), torch.randn(2, 4)
    expected = copy.deepcopy(model)(x).item()
    loss = ORTTrainer(model, DESCRIPTION, optim.SGDConfig(lr=0.1)).train_step(x)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
