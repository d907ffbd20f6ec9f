"""Padding is packed once and computes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.passes.rows.encoders import BATCH, LENGTH, VOCABULARY, WIDTH, Pair, Tagger, initialised
from tests.passes.rows.savings import NAMES, batch, notes, plan_of, trainer_of


def test_padding_is_packed_once_and_reaches_no_product():
    plan, rows = plan_of(Tagger(), batch([1, 7], [6, 3, 2]), graph_transformer={"disabled_passes": NAMES[:2]})
    assert set(rows.values()) == {11} and len(rows) == 13
    assert notes(plan)["EliminatePadding"] == ["unpadded rows 0: 11 of 18 rows, 13 products on them"]


class Normalised(nn.Module):
    """Queries and keys of length one, as some models have them: a row of zeros would be divided by zero."""

    def __init__(self):
        super().__init__()
        self.tagger, self.scale = Tagger(), nn.Parameter(torch.ones(1))

    def forward(self, ids, mask, labels):
        x = self.tagger.encoder.words(ids)
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.tagger.encoder.layers:
            q, k, v = (f(x).unflatten(-1, (2, -1)).transpose(1, 2) for f in (layer.q, layer.k, layer.v))
            q, k = (t / t.square().sum(-1, keepdim=True).sqrt() * self.scale for t in (q, k))
            x = x + layer.o(nn.functional.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).flatten(2))
        return nn.functional.cross_entropy(self.tagger.head(x).flatten(0, 1), labels.flatten())


def test_rows_that_are_left_out_divide_nothing_by_zero():
    feeds = batch([1, 7], [6, 3, 2])
    eager, ours = initialised(Normalised()), initialised(Normalised())
    loss = eager(**feeds)
    loss.backward()
    trainer = trainer_of(ours, feeds)
    torch.testing.assert_close(trainer.train_step(**feeds), loss.detach())
    (plan,) = trainer._run.session.plans.values()
    assert {"EliminateUnlabelledRows", "EliminatePadding"} <= set(notes(plan))
    for (name, before), after in zip(eager.named_parameters(), ours.parameters(), strict=True):
        if before.grad is not None:
            torch.testing.assert_close(before - after, before.grad, rtol=1e-9, atol=1e-12, msg=name)


class Answerer(nn.Module):
    """An encoder, and a decoder that attends to its tokens from so many places of its own."""

    def __init__(self):
        super().__init__()
        self.tagger, self.answers = Tagger(), nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, ids, mask, answers, labels):
        encoder, layer = self.tagger.encoder, self.tagger.encoder.layers[0]
        bias = (1.0 - mask[:, None, None, :].double()) * torch.finfo(torch.float64).min
        x, y = encoder(ids, mask), self.answers(answers)
        q, k, v = (f(t).unflatten(-1, (2, -1)).transpose(1, 2) for f, t in ((layer.q, y), (layer.k, x), (layer.v, x)))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return nn.functional.cross_entropy(
            self.tagger.head(y + attended.transpose(1, 2).flatten(2)).flatten(0, 1), labels.flatten()
        )


@pytest.mark.parametrize("places", [LENGTH - 2, LENGTH, LENGTH + 3])
def test_a_decoder_of_another_length_attends_to_packed_tokens(places):
    pair = Pair(Answerer())
    for lengths in ([6, 3, 2], [6, 3, 0]):  # a sequence of padding alone is seen by all who look
        ids = torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) % VOCABULARY
        mask = (torch.arange(LENGTH) < torch.tensor(lengths)[:, None]).long()
        answers = torch.arange(BATCH * places).reshape(BATCH, places) % VOCABULARY
        pair.check(ids, mask, answers, (answers * 3 + 1) % VOCABULARY)
