"""Rows that nobody reads are not computed."""

from __future__ import annotations

import torch
from torch import nn

from tests.passes.rows.encoders import VOCABULARY, Classifier, Tagger, made
from tests.passes.rows.savings import ROWS, batch, layer, plan, trainer


def test_a_classifier_computes_first_tokens_alone_in_its_last_layer():
    feeds = {**batch([], [6, 3, 2]), "labels": torch.tensor([0, 1, 2])}
    _, rows = plan(Classifier(), feeds)
    real = {"q": 11, "k": 11, "v": 11, "o": 11, "up": 11, "down": 11}
    last = {"q": 3, "k": 11, "v": 11, "o": 3, "up": 3, "down": 3}
    assert rows == {**layer(0, **real), **layer(1, **last), "head": 3}


class Visible(Tagger):
    def forward(self, ids, mask, labels):
        hidden = self.encoder(ids, mask)
        logits = self.head(hidden)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def test_logits_that_the_user_sees_are_computed_whole():
    feeds = batch([1, 7], [6, 3, 2])
    outputs = [("logits", ["batch", "length", VOCABULARY])]
    found, rows = plan(Visible(), feeds, outputs=outputs)
    assert rows["head"] == ROWS and rows["layers.0.up"] == ROWS
    (loss,) = [node for node in found.model.graph if node.op_type == "SoftmaxCrossEntropyLoss"]
    assert loss.inputs[0].shape[0] == 2
    with torch.no_grad():
        expected = made(Visible())(**feeds)[1]
    torch.testing.assert_close(trainer(made(Visible()), feeds, outputs=outputs).train_step(**feeds)[1], expected)
