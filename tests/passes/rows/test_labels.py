"""Rows without a label reach no product behind the last that mixes rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.passes.rows.encoders import BATCH, LENGTH, VOCABULARY, WIDTH, Tagger, initialised
from tests.passes.rows.savings import ROWS, batch, layer, notes, plan_of, trainer_of


def test_unlabelled_rows_reach_neither_head_nor_last_network_nor_last_queries():
    plan, rows = plan_of(Tagger(), batch([1, 7, 8], [LENGTH] * BATCH))
    everything = {"q": ROWS, "k": ROWS, "v": ROWS, "o": ROWS, "up": ROWS, "down": ROWS}
    last = {"q": 3, "k": ROWS, "v": ROWS, "o": 3, "up": 3, "down": 3}
    assert rows == {**layer(0, **everything), **layer(1, **last), "head": 3}
    assert notes(plan)["EliminateUnlabelledRows"] == ["labelled rows 0: 3 of 18 rows, 5 products on them"]


def test_labels_are_looked_for_among_what_is_left_of_the_padding():
    _, rows = plan_of(Tagger(), batch([1, 7], [6, 3, 2]))
    real = {"q": 11, "k": 11, "v": 11, "o": 11, "up": 11, "down": 11}
    last = {"q": 2, "k": 11, "v": 11, "o": 2, "up": 2, "down": 2}
    assert rows == {**layer(0, **real), **layer(1, **last), "head": 2}


class Weighted(Tagger):
    def forward(self, ids, mask, labels):
        logits = self.head(self.encoder(ids, mask)).flatten(0, 1)
        weight = torch.arange(1.0, VOCABULARY + 1, dtype=logits.dtype)
        return nn.functional.cross_entropy(logits, labels.flatten(), weight=weight)


class Smoothed(Tagger):
    def forward(self, ids, mask, labels):
        logits = self.head(self.encoder(ids, mask)).flatten(0, 1)
        return nn.functional.cross_entropy(logits, labels.flatten(), label_smoothing=0.1)


@pytest.mark.parametrize("kind", [Weighted, Smoothed])
def test_other_classification_losses_keep_their_value(kind):
    feeds = batch([1, 7, 12], [6, 3, 2])
    with torch.no_grad():
        expected = initialised(kind())(**feeds)
    torch.testing.assert_close(trainer_of(initialised(kind()), feeds).train_step(**feeds), expected)


class TwoHeads(nn.Module):
    """Masked tokens and a class for each sequence, as in BERT's pre-training."""

    def __init__(self):
        super().__init__()
        self.tagger, self.sequence = Tagger(), nn.Linear(WIDTH, 2)

    def forward(self, ids, mask, labels, classes):
        hidden = self.tagger.encoder(ids, mask)
        tokens = nn.functional.cross_entropy(self.tagger.head(hidden).flatten(0, 1), labels.flatten())
        return tokens + nn.functional.cross_entropy(self.sequence(hidden[:, 0]), classes)


def test_two_losses_on_one_trunk_each_keep_their_rows():
    feeds = {**batch([1, 7], [6, 3, 2]), "classes": torch.tensor([0, 1, 1])}
    eager = initialised(TwoHeads())
    loss = eager(**feeds)
    loss.backward()
    ours = initialised(TwoHeads())
    trainer = trainer_of(ours, feeds)
    torch.testing.assert_close(trainer.train_step(**feeds), loss.detach())
    for (name, before), after in zip(eager.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(before - after, before.grad, rtol=1e-9, atol=1e-12, msg=name)
    (plan,) = trainer._run.session.plans.values()
    # Two labelled tokens, and the first of each sequence for the classifier.
    assert notes(plan)["EliminateUnlabelledRows"][0].startswith("labelled rows 0: 5 of 18 rows, 5 products")
