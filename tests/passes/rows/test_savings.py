"""How many rows are really computed, read off the graphs that plans run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ontrain.training import ORTTrainer, optim
from tests.passes.rows.encoders import BATCH, LENGTH, VOCABULARY, WIDTH, Classifier, Tagger, made

ROWS = BATCH * LENGTH
NAMES = ("EliminateUnlabelledRows", "EliminateUnreadRows", "EliminatePadding")


def batch(labelled, lengths):
    torch.manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    mask = (torch.arange(LENGTH) < torch.tensor(lengths)[:, None]).long()
    labels = torch.full((ROWS,), -100)
    labels[labelled] = 1
    return {"ids": ids, "mask": mask, "labels": labels.reshape(BATCH, LENGTH)}


def trainer(module, feeds, *, outputs=(), **options):
    axes = ["batch", "length"]
    description = {
        "inputs": [(name, axes[: one.dim()]) for name, one in feeds.items()],
        "outputs": [("loss", [], True), *outputs],
    }
    return ORTTrainer(module, description, optim.SGDConfig(lr=1.0), None, {"device": {"id": "cpu"}, **options})


def plan(module, feeds, **options):
    """The plan of one step, and the rows of each forward product with a weight, by the weight's name."""
    made_trainer = trainer(made(module), feeds, **options)
    made_trainer.train_step(**feeds)
    (found,) = made_trainer._session.plans.values()
    rows = {}
    for node in found.model.graph:
        if node.op_type == "Gemm" and node.inputs[1].name.endswith("weight") and node.inputs[1].is_graph_input():
            rows.setdefault(node.inputs[1].name, node.outputs[0].shape[0])
    return found, {name.removesuffix(".weight").removeprefix("encoder."): count for name, count in rows.items()}


def notes(found):
    return {one.name: one.notes for one in found.passes if one.notes}


def layer(number, **rows):
    return {f"layers.{number}.{name}": count for name, count in rows.items()}


def test_unlabelled_rows_reach_neither_head_nor_last_network_nor_last_queries():
    found, rows = plan(Tagger(), batch([1, 7, 8], [LENGTH] * BATCH))
    everything = {"q": ROWS, "k": ROWS, "v": ROWS, "o": ROWS, "up": ROWS, "down": ROWS}
    last = {"q": 3, "k": ROWS, "v": ROWS, "o": 3, "up": 3, "down": 3}
    assert rows == {**layer(0, **everything), **layer(1, **last), "head": 3}
    assert notes(found)["EliminateUnlabelledRows"] == ["labelled rows 0: 3 of 18 rows, 5 products on them"]


def test_padding_is_packed_once_and_reaches_no_product():
    found, rows = plan(Tagger(), batch([1, 7], [6, 3, 2]), graph_transformer={"disabled_passes": NAMES[:2]})
    assert set(rows.values()) == {11} and len(rows) == 13
    assert notes(found)["EliminatePadding"] == ["unpadded rows 0: 11 of 18 rows, 13 products on them"]


def test_labels_are_looked_for_among_what_is_left_of_the_padding():
    _, rows = plan(Tagger(), batch([1, 7], [6, 3, 2]))
    real = {"q": 11, "k": 11, "v": 11, "o": 11, "up": 11, "down": 11}
    last = {"q": 2, "k": 11, "v": 11, "o": 2, "up": 2, "down": 2}
    assert rows == {**layer(0, **real), **layer(1, **last), "head": 2}


def test_a_classifier_computes_first_tokens_alone_in_its_last_layer():
    feeds = {**batch([], [6, 3, 2]), "labels": torch.tensor([0, 1, 2])}
    _, rows = plan(Classifier(), feeds)
    real = {"q": 11, "k": 11, "v": 11, "o": 11, "up": 11, "down": 11}
    last = {"q": 3, "k": 11, "v": 11, "o": 3, "up": 3, "down": 3}
    assert rows == {**layer(0, **real), **layer(1, **last), "head": 3}


def test_where_nothing_is_gained_the_graph_is_untouched():
    feeds = batch(list(range(ROWS)), [LENGTH] * BATCH)
    found, _ = plan(Tagger(), feeds)
    without, _ = plan(Tagger(), feeds, graph_transformer={"disabled_passes": NAMES})
    operators = [[node.op_type for node in one.model.graph] for one in (found, without)]
    assert operators[0] == operators[1] and "PackRows" not in operators[0]


@pytest.mark.parametrize("name", NAMES[::2])
def test_each_pass_can_be_left_out_by_name(name, monkeypatch):
    monkeypatch.setenv("ONTRAIN_DISABLE_PASSES", name)
    found, _ = plan(Tagger(), batch([1, 7], [6, 3, 2]))
    assert name not in {one.name for one in found.passes}
    assert {NAMES[0], NAMES[2]} - {name} == set(notes(found))


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
        expected = made(kind())(**feeds)
    torch.testing.assert_close(trainer(made(kind()), feeds).train_step(**feeds), expected)


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
    eager = made(TwoHeads())
    loss = eager(**feeds)
    loss.backward()
    ours = made(TwoHeads())
    one = trainer(ours, feeds)
    torch.testing.assert_close(one.train_step(**feeds), loss.detach())
    for (name, before), after in zip(eager.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(before - after, before.grad, rtol=1e-9, atol=1e-12, msg=name)
    (found,) = one._session.plans.values()
    # Two labelled tokens, and the first of each sequence for the classifier.
    assert notes(found)["EliminateUnlabelledRows"][0].startswith("labelled rows 0: 5 of 18 rows, 5 products")


class Normalised(nn.Module):
    """Queries and keys of length one, as some models have them: a row of zeros would be divided by zero."""

    def __init__(self):
        super().__init__()
        self.tagger, self.scale = Tagger(), nn.Parameter(torch.ones(1))

    def forward(self, ids, mask, labels):
        x = self.tagger.encoder.words(ids)
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for one in self.tagger.encoder.layers:
            q, k, v = (f(x).unflatten(-1, (2, -1)).transpose(1, 2) for f in (one.q, one.k, one.v))
            q, k = (t / t.square().sum(-1, keepdim=True).sqrt() * self.scale for t in (q, k))
            x = x + one.o(nn.functional.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).flatten(2))
        return nn.functional.cross_entropy(self.tagger.head(x).flatten(0, 1), labels.flatten())


def test_rows_that_are_left_out_divide_nothing_by_zero():
    feeds = batch([1, 7], [6, 3, 2])
    eager, ours = made(Normalised()), made(Normalised())
    loss = eager(**feeds)
    loss.backward()
    one = trainer(ours, feeds)
    torch.testing.assert_close(one.train_step(**feeds), loss.detach())
    (found,) = one._session.plans.values()
    assert {"EliminateUnlabelledRows", "EliminatePadding"} <= set(notes(found))
    for (name, before), after in zip(eager.named_parameters(), ours.parameters(), strict=True):
        if before.grad is not None:
            torch.testing.assert_close(before - after, before.grad, rtol=1e-9, atol=1e-12, msg=name)
