"""Padding is packed once and computes nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule
from tests.passes.rows.encoders import VOCABULARY, WIDTH, Tagger, made
from tests.passes.rows.savings import NAMES, batch, notes, plan, trainer


def test_padding_is_packed_once_and_reaches_no_product():
    found, rows = plan(Tagger(), batch([1, 7], [6, 3, 2]), graph_transformer={"disabled_passes": NAMES[:2]})
    assert set(rows.values()) == {11} and len(rows) == 13
    assert notes(found)["EliminatePadding"] == ["unpadded rows 0: 11 of 18 rows, 13 products on them"]


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
    (found,) = one._run.session.plans.values()
    assert {"EliminateUnlabelledRows", "EliminatePadding"} <= set(notes(found))
    for (name, before), after in zip(eager.named_parameters(), ours.parameters(), strict=True):
        if before.grad is not None:
            torch.testing.assert_close(before - after, before.grad, rtol=1e-9, atol=1e-12, msg=name)


class Translator(nn.Module):
    """A decoder of another length looks at what an encoder makes, by the mask of the encoder."""

    def __init__(self):
        super().__init__()
        self.encoder, self.words = Tagger().encoder, nn.Embedding(VOCABULARY, WIDTH)
        self.q, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids, mask, target, labels):
        seen = mask[:, None, None, :].bool()
        keys = self.encoder.words(ids)
        attend = nn.functional.scaled_dot_product_attention
        for layer in self.encoder.layers:
            q, k, v = (f(keys).unflatten(-1, (2, -1)).transpose(1, 2) for f in (layer.q, layer.k, layer.v))
            keys = keys + layer.o(attend(q, k, v, seen).transpose(1, 2).flatten(2))
        q, k = (x.unflatten(-1, (2, -1)).transpose(1, 2) for x in (self.q(self.words(target)), keys))
        y = attend(q, k, k, seen).transpose(1, 2).flatten(2)
        return nn.functional.cross_entropy(self.head(y).flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("rows", [[6, 3, 2], [6, 0, 1]], ids=["padded", "with a sequence of nothing else"])
def test_queries_of_another_length_look_at_keys_without_padding(rows):
    torch.manual_seed(0)
    feeds = batch([1, 7], rows)
    del feeds["labels"]
    target = torch.randint(0, VOCABULARY, (3, 4))
    eager = Translator().double()
    ours = ORTModule(copy.deepcopy(eager))
    losses = [module(**feeds, target=target, labels=target.roll(1, 1)) for module in (ours, eager)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*losses)
    for (name, p), q in zip(ours.named_parameters(), eager.named_parameters(), strict=True):
        assert (p.grad is None) == (q[1].grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q[1].grad, rtol=1e-9, atol=1e-12, msg=name)
