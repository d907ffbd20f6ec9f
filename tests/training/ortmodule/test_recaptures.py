"""A module that is captured anew in each call is told of once, with what changes."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule, trace


class Settings:
    def __init__(self):
        self.power = 0


class Changing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale, self.mode, self.settings = nn.Linear(4, 3), 1.0, ("sum", 0), Settings()

    def forward(self, x):
        return self.layer(x) * self.scale + self.mode[1] + self.settings.power


def change_number(model, step):
    model.scale = 1.0 + step


def change_pair(model, step):
    model.mode = ("sum", step)


def change_helper(model, step):
    model.settings.power = step


def change_layer(model, step):
    model.layer = nn.Linear(4, 3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (change_number, "the attribute 'scale' changes from call to call"),
        (change_pair, "the attribute 'mode' changes from call to call"),
        (change_helper, "the attribute 'power' changes from call to call"),
        (change_layer, "a parameter, buffer, submodule or hook changes from call to call"),
    ],
)
def test_eight_captures_in_a_row_are_told_of_once_with_the_cause(change, cause):
    model = ORTModule(Changing())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(10):
            change(model.module, step)
            x = torch.randn(2, 4)
            torch.testing.assert_close(model(x), model.module(x))
    texts = [str(warning.message) for warning in told]
    assert len(texts) == 1 and cause in texts[0] and "each of the last 8 calls of Changing" in texts[0]
    assert told[0].filename == __file__


def test_captures_between_other_calls_are_not_told_of():
    model = ORTModule(Changing())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(9):
            model.module.scale = 1.0 + step
            for _ in range(2):
                model(torch.randn(2, 4))
    assert model._engine.captures == 9


class Pooled(nn.Module):
    """Pools signals to half of their length, which a graph has to know."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, x):
        return nn.functional.adaptive_max_pool1d(x * self.scale, x.shape[1] // 2).sum((1, 2))


def test_where_lengths_are_fixed_any_batch_of_a_length_has_one_capture_and_each_length_one():
    model, captures = ORTModule(Pooled()), []
    with pytest.warns(UserWarning, match="Pooled is captured anew for each shape: adaptive pooling"):
        model(torch.randn(4, 9, 6, dtype=torch.float64))
    for shape in ((5, 9, 6), (3, 9, 6), (2, 9, 6), (5, 11, 6), (3, 11, 6)):
        x = torch.randn(shape, dtype=torch.float64)
        torch.testing.assert_close(model(x), model.module(x))
        captures.append(model._engine.captures)
    assert captures == [2, 2, 2, 3, 3]


def test_where_no_size_may_vary_each_shape_is_traced_once(monkeypatch):
    class Singular(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

        def forward(self, x):
            return torch.linalg.svdvals(x * self.scale).sum()

    tried = []
    own = trace.capture
    monkeypatch.setattr(
        trace, "capture", lambda *args, **kwargs: tried.append(kwargs.get("dynamic")) or own(*args, **kwargs)
    )
    model = ORTModule(Singular())
    with pytest.warns(UserWarning, match="Singular is captured anew for each shape"):
        model(torch.randn(4, 5, dtype=torch.float64))
    model(torch.randn(3, 5, dtype=torch.float64))
    assert len(tried) == 4
    model(torch.randn(2, 5, dtype=torch.float64))
    assert len(tried) == 5


class Carded(Changing):
    """Has a card on which a trainer notes each step, as the models of sentence-transformers have."""

    def __init__(self):
        super().__init__()
        self.card = Settings()
        self.card.logs = []


def test_notes_on_an_object_that_forward_does_not_read_need_one_capture_more():
    model = ORTModule(Carded())
    x = torch.randn(2, 4)
    for step in range(6):
        model.card.logs.append({"step": step, "loss": model(x).sum().item()})
    assert model._engine.captures == 2
    model.settings.power = 7
    torch.testing.assert_close(model(x), model.module(x))
