"""Scores of padding: hidden by the model itself, which costs nothing; hidden by a pass, which is another loss."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import example, given as drawn, settings, strategies as st
from torch import nn
from torch.nn import functional as F

from ontrain.passes import HidePaddedCandidates, register_pass, unregister_pass
from tests.passes.rows.encoders import BATCH, LENGTH, VOCABULARY, WIDTH, Encoder, Pair, initialised
from tests.passes.rows.savings import plan_of, trainer_of


class Spans(nn.Module):
    """Two scores a token, as in question answering: where an answer begins, and where it ends."""

    def __init__(self, hide=None, inverse=False):
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(WIDTH, 2)
        self.hide, self.inverse = hide, inverse

    def forward(self, ids, mask, first, last):
        begin, end = (logits.squeeze(-1) for logits in self.head(self.encoder(ids, mask)).split(1, -1))
        if self.hide is not None:
            begin, end = (
                torch.where(mask > 0, logits, self.hide) if self.inverse else logits.masked_fill(mask == 0, self.hide)
                for logits in (begin, end)
            )
        return (F.cross_entropy(begin, first) + F.cross_entropy(end, last)) / 2


class Classes(nn.Module):
    """A class for each sequence, of which there are as many as tokens."""

    def __init__(self):
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(WIDTH, LENGTH)

    def forward(self, ids, mask, first):
        return F.cross_entropy(self.head(self.encoder(ids, mask).mean(1)), first)


def batch(lengths):
    lengths = torch.tensor(lengths)
    ids = torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) % VOCABULARY
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    return {"ids": ids, "mask": mask, "first": (lengths - 1).clamp(min=0) // 2, "last": (lengths - 1).clamp(min=0)}


@pytest.fixture
def hidden_by_a_pass():
    register_pass(HidePaddedCandidates(), stage="forward", after="ShareCommonSubexpressions")
    yield
    unregister_pass("HidePaddedCandidates", stage="forward")


PAIRS = {}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("hide", "inverse"), [(-1e9, False), (-1e4, True), (0.5, False)])
@settings(max_examples=2)
@drawn(lengths=st.lists(st.integers(0, LENGTH), min_size=BATCH, max_size=BATCH))
@example(lengths=[6, 3, 0])
def test_what_the_model_hides_itself_is_left_out_and_nothing_changes(hide, inverse, lengths):
    pair = PAIRS.setdefault((hide, inverse), Pair(Spans(hide, inverse)))
    pair.check(*batch(lengths).values())


def test_scores_that_the_model_hides_itself_let_padding_be_packed_everywhere():
    _, rows = plan_of(Spans(-1e9), batch([6, 3, 2]))
    assert set(rows.values()) == {11} and len(rows) == 13


def test_scores_of_padding_are_candidates_unless_asked_otherwise():
    _, rows = plan_of(Spans(), batch([6, 3, 2]))
    assert rows["head"] == rows["layers.1.q"] == 18 and rows["layers.1.k"] == 11


@pytest.mark.usefixtures("hidden_by_a_pass")
def test_the_pass_trains_the_model_that_hides_padding_itself():
    feeds, plain = batch([6, 3, 2]), initialised(Spans())
    hiding = Spans(-1e9).double()
    hiding.load_state_dict(plain.state_dict())
    trained = copy.deepcopy(plain)
    ours = trainer_of(trained, feeds)
    loss = ours.train_step(**feeds)
    want = hiding(*feeds.values())
    want.backward()
    torch.testing.assert_close(loss, want.detach(), rtol=1e-12, atol=0)
    assert (plain(*feeds.values()) - want).abs() > 1e-3, "it is another loss"
    (plan,) = ours._run.session.plans.values()
    assert [report.changed for report in plan.passes if report.name == "HidePaddedCandidates"] == [2]
    for (name, before), after, parameter in zip(
        plain.named_parameters(), trained.parameters(), hiding.parameters(), strict=True
    ):
        torch.testing.assert_close(before - after, parameter.grad, rtol=1e-11, atol=1e-12, msg=name)
    _, rows = plan_of(Spans(), feeds)
    assert set(rows.values()) == {11}


@pytest.mark.usefixtures("hidden_by_a_pass")
def test_classes_of_a_sequence_are_no_candidates_of_padding():
    feeds = batch([6, 3, 2])
    del feeds["last"]
    model = initialised(Classes())
    loss = trainer_of(copy.deepcopy(model), feeds).train_step(**feeds)
    torch.testing.assert_close(loss, model(*feeds.values()).detach(), rtol=1e-12, atol=0)
