"""Leaving out rows changes no loss and no gradient, whatever is masked and labelled."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given as drawn, settings, strategies as st

from tests.passes.rows.encoders import BATCH, LENGTH, VOCABULARY, Classifier, Pair, Tagger

pytestmark = pytest.mark.sampled(4)

ROWS = BATCH * LENGTH
PAIRS: dict[str, Pair] = {}
FORMS = {
    "flat": lambda: Tagger(),
    "summed": lambda: Tagger(reduction="sum"),
    "each row": lambda: Tagger(reduction="none"),
    "classes second": lambda: Tagger("classes second"),
    "shifted": lambda: Tagger("shifted"),
    "causal": lambda: Tagger("shifted", causal=True),
    "log-probabilities": lambda: Tagger("log-probabilities"),
}


def pair(name):
    if name not in PAIRS:
        PAIRS[name] = Pair(Classifier() if name == "classifier" else FORMS[name]())
    return PAIRS[name]


def tokens(labelled, mask):
    ids = torch.arange(ROWS).reshape(BATCH, LENGTH) % VOCABULARY
    labels = torch.where(torch.tensor(labelled).reshape(BATCH, LENGTH), (3 * ids + 1) % VOCABULARY, -100)
    return ids, torch.tensor(mask).reshape(BATCH, LENGTH).long(), labels


NONE, ALL = [False] * ROWS, [True] * ROWS


def only(*rows):
    return [i in rows for i in range(ROWS)]


def first(*lengths):
    """Sequences padded at their ends."""
    return [i < n for n in lengths for i in range(LENGTH)]


def last(*lengths):
    """Sequences padded at their beginnings."""
    return [i >= LENGTH - n for n in lengths for i in range(LENGTH)]


PATTERNS = [
    (ALL, ALL),
    (NONE, ALL),
    (only(0), ALL),
    (only(ROWS - 1), ALL),
    (only(8), first(6, 3, 2)),
    (first(6, 3, 2), first(6, 3, 2)),
    (only(1, 9), last(6, 4, 1)),
    (only(2, 11), first(6, 3, 0)),
    (only(10, 17), first(4, 2, 1)),
    (only(5), NONE),
    (NONE, NONE),
]


@pytest.mark.parametrize("form", FORMS)
def test_patterns_that_are_easily_got_wrong(form):
    for labelled, mask in PATTERNS if form == "flat" else PATTERNS[4::3]:
        pair(form).check(*tokens(labelled, mask))


pattern = st.lists(st.booleans(), min_size=ROWS, max_size=ROWS)
lengths = st.lists(st.integers(0, LENGTH), min_size=BATCH, max_size=BATCH)


@settings(max_examples=10)
@drawn(pattern, st.one_of(pattern, lengths.map(lambda n: first(*n)), lengths.map(lambda n: last(*n))))
@example(only(7), only(0, 13))
def test_any_pattern_of_masks_and_labels(labelled, mask):
    pair("flat").check(*tokens(labelled, mask))


@settings(max_examples=3)
@drawn(lengths)
@example([6, 1, 0])
def test_a_classifier_on_the_first_token(chosen):
    ids, mask, _ = tokens(NONE, first(*chosen))
    pair("classifier").check(ids, mask, torch.tensor([0, 3, 1]))


def test_a_classifier_keeps_first_tokens_that_are_padding():
    """All its rows have a label: what is packed is not what would be if some had none."""
    for _, mask in PATTERNS:
        ids, mask, _ = tokens(NONE, mask)
        pair("classifier").check(ids, mask, torch.tensor([0, 3, 1]))
        pair("classifier").check(ids, mask, torch.tensor([0, -100, 1]))


class Siblings(torch.nn.Module):
    """Two sets of tokens of one shape: rows of the second are read where the first one's padding says."""

    def __init__(self):
        super().__init__()
        self.one, self.other = Tagger(), Tagger()

    def forward(self, ids, mask, labels, other_mask):
        return self.one(ids, mask, labels) + 2 * self.other(ids.flip(0), other_mask, labels)


def test_two_sets_of_tokens_of_one_shape_are_packed_by_themselves():
    siblings = Pair(Siblings())
    for lengths_of_one, lengths_of_other in (((6, 3, 2), (2, 4, 6)), ((6, 6, 6), (1, 2, 3)), ((1, 1, 4), (6, 5, 6))):
        ids, mask, labels = tokens(only(0, 7, 12), first(*lengths_of_one))
        siblings.check(ids, mask, labels, tokens(NONE, first(*lengths_of_other))[1])


def test_labels_on_padding_are_learned_from():
    ids, mask, labels = tokens(only(5, 17), first(3, 3, 3))
    assert int(((labels != -100) & (mask == 0)).sum()) == 2
    pair("flat").check(ids, mask, labels)


def test_patterns_that_change_each_step_make_few_plans(rng):
    pair, sequences = Pair(Tagger()), 40
    sizes = set()
    for _ in range(20):
        ids = torch.from_numpy(rng.integers(0, VOCABULARY, (sequences, LENGTH)))
        mask = (torch.arange(LENGTH) < torch.from_numpy(rng.integers(4, LENGTH + 1, (sequences, 1)))).long()
        labels = torch.where(torch.from_numpy(rng.random((sequences, LENGTH)) < 0.3), ids, -100)
        sizes.add((int((labels != -100).sum()), int(((mask > 0) | (labels != -100)).sum())))
        pair.ours(ids, mask, labels)
    assert len(sizes) == 20 and pair.plans <= 10


def test_a_label_that_is_no_class_is_named_though_rows_are_left_out():
    from ontrain import InputError

    ids, mask, labels = tokens(only(3), ALL)
    labels[0, 3] = VOCABULARY
    with pytest.raises(InputError, match=f"holds label {VOCABULARY}"):
        pair("flat").ours(ids, mask, labels)


def test_a_token_that_is_not_in_the_vocabulary_is_named_though_rows_are_packed():
    from ontrain import InputError

    ids, mask, labels = tokens(only(3), first(6, 3, 2))
    ids[0, 1] = VOCABULARY
    with pytest.raises(InputError, match=f"holds index {VOCABULARY}"):
        pair("flat").ours(ids, mask, labels)


def test_what_stands_in_the_padding_does_not_reach_the_loss():
    ids, mask, labels = tokens(only(0, 7), first(6, 3, 2))
    expected = pair("flat").ours(ids, mask, labels)
    other = torch.where(mask == 0, (ids + 5) % VOCABULARY, ids)
    torch.testing.assert_close(pair("flat").ours(other, mask, labels), expected, rtol=0, atol=0)
