"""What becomes of entries that forward writes is told from trials as small as they can be."""

from __future__ import annotations

import copy
from collections import deque

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule, trials


class Classifier(nn.Module):
    """Notes its task in its configuration, as the classifiers of transformers do."""

    def __init__(self):
        super().__init__()
        self.layer, self.config = nn.Linear(4, 3), {"problem": None}
        self.register_buffer("ranks", torch.arange(3))

    def forward(self, x, labels, mask=None):
        y = self.layer(x) if mask is None else self.layer(x * mask)
        if self.config["problem"] is None:
            self.config["problem"] = "regression" if labels.is_floating_point() else "single_label_classification"
        if self.config["problem"] == "regression":
            return (y[:, 0] - labels).square().mean()
        return nn.functional.cross_entropy(y, labels)


class Wide(Classifier):
    """Notes it only for batches of many rows."""

    def forward(self, x, labels):
        if len(x) < 4:
            return self.layer(x).mean()
        return super().forward(x, labels)


class Counter(Classifier):
    """Counts its calls, too."""

    def forward(self, x, labels):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x, labels)


def rows_of_trials(monkeypatch, module, *batch):
    rows, run = [], trials.run

    def noted(double, call):
        rows.append(len(call[0][0]))
        return run(double, call)

    monkeypatch.setattr(trials, "run", noted)
    ours = ORTModule(module)
    ours(*batch).backward()
    return rows, ours


def test_a_note_that_the_next_call_finds_takes_two_trials_of_two_rows(monkeypatch):
    module = Classifier()
    rows, ours = rows_of_trials(monkeypatch, module, torch.randn(8, 4), torch.randint(3, (8,)), torch.ones(4))
    assert rows == [2, 2]
    assert module.config == {"problem": "single_label_classification"}
    batch = torch.randn(5, 4), torch.randint(3, (5,)), torch.ones(4)
    torch.testing.assert_close(ours(*batch), module(*batch))


def test_a_note_that_small_calls_do_not_write_takes_trials_of_all_rows(monkeypatch):
    module = Wide()
    rows, _ = rows_of_trials(monkeypatch, module, torch.randn(8, 4), torch.randint(3, (8,)))
    assert set(rows[:2]) == {2} and set(rows[2:]) == {8}
    assert module.config == {"problem": "single_label_classification"}


def test_a_number_beside_a_note_is_told_from_trials_of_all_rows(monkeypatch):
    module = Counter()
    rows, ours = rows_of_trials(monkeypatch, module, torch.randn(8, 4), torch.randint(3, (8,)))
    assert 8 in rows
    ours(torch.randn(8, 4), torch.randint(3, (8,)))
    assert module.calls == 2


class Notes(nn.Module):
    """Notes numbers of each batch in a dictionary: its loss, how many rows are positive, and the first scale."""

    def __init__(self):
        super().__init__()
        self.layer, self.notes = nn.Linear(4, 3), {}

    def forward(self, x):
        y = self.layer(x).square().mean()
        self.notes["loss"], self.notes["rows"] = y.item(), (x[:, 0] > 0).sum().item()
        self.notes.setdefault("scale", x.abs().max().item())
        return y


def test_numbers_that_each_call_notes_in_a_dictionary_are_written_by_one_capture():
    eager = Notes().double()
    ours = ORTModule(copy.deepcopy(eager))
    for _ in range(4):
        x = torch.randn(6, 4, dtype=torch.float64)
        torch.testing.assert_close(ours(x), eager(x))
        assert ours.module.notes == pytest.approx(eager.notes, rel=1e-12)
    assert ours._engine.captures <= 2  # one for the first call alone


class Meter:
    """A running mean, as training loops have them."""

    def __init__(self):
        self.total, self.count, self.mean = 0.0, 0, 0.0

    def update(self, value, count):
        self.total, self.count = self.total + value * count, self.count + count
        self.mean = self.total / self.count


def averaged(module, x, y):
    module.average = 0.9 * module.average + 0.1 * y.item()


def counted(module, x, y):
    module.positive += (x[:, 0] > 0).sum().item()


def summed(module, x, y):
    module.notes["total"] = module.notes.get("total", 0.0) + y.item()


def paired(module, x, y):
    module.pair = (y.item(), x.mean().item())


def noted_anew(module, x, y):
    module.notes = {"loss": y.item(), "twice": (2 * y).item()}


def updated(module, x, y):
    module.notes.update(loss=y.item(), mean=x.mean().item())


def metered(module, x, y):
    module.meter.update(y.item(), x.shape[0])


def listed(module, x, y):
    module.losses.append(y.item())


def last(module, x, y):
    module.recent.append(y.item())


NOTING = [averaged, counted, summed, paired, noted_anew, updated, metered, listed, last]


class Noting(nn.Module):
    """Calls a function that notes or adds up numbers of each batch."""

    def __init__(self, note):
        super().__init__()
        self.layer, self.note, self.meter = nn.Linear(4, 3), note, Meter()
        self.average, self.positive, self.pair, self.notes = 0.0, 0, None, {}
        self.losses, self.recent = [], deque(maxlen=3)

    def forward(self, x):
        y = self.layer(x).square().mean()
        self.note(self, x, y)
        return y * 2

    def noted(self):
        single = [self.average, self.positive, *(self.pair or ()), *vars(self.meter).values()]
        return [*single, *self.notes.values(), *self.losses, *self.recent]


@pytest.mark.parametrize("note", NOTING)
def test_numbers_that_calls_note_and_add_up_are_eagers(note):
    eager = Noting(note).double()
    ours = ORTModule(copy.deepcopy(eager))
    for rows in (6, 5, 6, 7, 5):
        x = torch.randn(rows, 4, dtype=torch.float64)
        torch.testing.assert_close(ours(x), eager(x))
        assert ours.module.noted() == pytest.approx(eager.noted(), rel=1e-12)
        assert list(ours.module.notes) == list(eager.notes)
    if note is not metered:  # whose mean each count is captured anew for
        assert ours._engine.captures <= 3  # one without the notes, one that begins them, one that goes on
