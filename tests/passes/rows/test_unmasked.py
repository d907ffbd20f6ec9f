"""A mask that hides nothing in a batch is not added: the results stay, and what hides something goes on hiding it."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given as drawn, settings, strategies as st
from torch import nn

from ontrain.graph import static_dims
from ontrain.passes.rows import unmasked
from ontrain.training.ortmodule import ORTModule
from tests.passes.rows.encoders import BATCH, LENGTH, VOCABULARY, Encoder, Pair, Tagger

LOW = torch.finfo(torch.float64).min
FULL, PADDED = [LENGTH] * BATCH, [6, 3, 2]


@pytest.fixture
def said(monkeypatch):
    """What the pass says about each plan that it changes."""
    notes = []
    monkeypatch.setattr(unmasked, "note", notes.append)
    return notes


def causal():
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


def hidden(where, low):
    return torch.zeros(where.shape, dtype=torch.float64).masked_fill(where, low)


class Masked(nn.Module):
    """A tagger whose mask is written in one of the ways that models write it."""

    def __init__(self, way):
        super().__init__()
        self.tagger, self.way = Tagger(), way
        self.places = nn.Parameter(torch.ones(1, 2, LENGTH, LENGTH))

    def bias(self, mask):
        seen = mask[:, None, None, :].bool()
        match self.way:
            case "zero or low":
                return torch.zeros(BATCH, 1, 1, LENGTH).double().masked_fill(~seen, LOW)
            case "multiplied":
                return (1.0 - mask[:, None, None, :].double()) * LOW
            case "truth":
                return seen
            case "truth, expanded":
                return seen.expand(BATCH, 1, LENGTH, LENGTH)
            case "truth of real rows":
                return seen & (torch.arange(LENGTH) >= 0)[:, None]
            case "truth and causal":
                return seen & causal()
            case "causal, filled later":
                return ((1.0 - mask[:, None, None, :].double()) * LOW).masked_fill(~causal(), LOW)
            case "causal, added":
                return (1.0 - mask[:, None, None, :].double()) * LOW / 4 + hidden(~causal(), LOW / 4)
            case "causal at the end":
                both = hidden(~seen, LOW) + hidden(~causal(), LOW)
                return torch.max(both, torch.tensor(LOW, dtype=both.dtype))
            case "positions":
                return self.places + (1.0 - mask[:, None, None, :].double()) * LOW
            case "positions where seen":
                return torch.where(seen & causal(), self.places, LOW)
            case "distances":
                return torch.where(seen, -torch.arange(LENGTH).double(), LOW)

    def forward(self, ids, mask, labels):
        encoder = self.tagger.encoder
        x, bias = encoder.words(ids) + encoder.places.weight, self.bias(mask)
        for layer in encoder.layers:
            x = layer(x, bias)
        return nn.functional.cross_entropy(self.tagger.head(x).flatten(0, 1), labels.flatten())


WAYS = (
    "zero or low", "multiplied", "truth", "truth, expanded", "truth of real rows", "truth and causal",
    "causal, filled later",
    "causal, added", "causal at the end", "positions", "positions where seen", "distances",
)  # fmt: skip
LEFT = {"truth and causal", "causal, filled later", "causal, added", "causal at the end", "positions",
        "positions where seen", "distances"}  # fmt: skip
"""Ways of which something is left to add in a batch without padding."""


def batch(lengths):
    ids = torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) % VOCABULARY
    mask = (torch.arange(LENGTH) < torch.tensor(lengths)[:, None]).long()
    return ids, mask, torch.where(mask == 1, (ids * 3 + 1) % VOCABULARY, -100)


def nodes_of(model):
    """The forward nodes of each plan."""
    (entry,) = model._engine.entries
    codes = [plan.executable.current.forward_code.program for plan in entry.session.plans.values()]
    return [[node for node in dict.fromkeys(call.node for call in code) if node is not None] for code in codes]


def biases(model):
    """What attentions add to their scores, by plan: the shape, or None."""
    shapes = []
    for nodes in nodes_of(model):
        attentions = [node for node in nodes if node.op_type == "Attention"]
        added = [node.inputs[3] if len(node.inputs) > 3 else None for node in attentions]
        shapes.append([None if value is None else static_dims(value) for value in added])
    return shapes


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", WAYS)
def test_batches_with_and_without_padding_are_equal_to_eager(way, said):
    pair = Pair(Masked(way))
    for lengths in (FULL, PADDED, FULL, [6, 6, 5], [6, 6, 0], FULL):
        pair.check(*batch(lengths))
    assert len(said) == 1 and said[0].startswith("masks 0: 2 attentions")
    without = [shapes for shapes in biases(pair.ours) if all(shape is None for shape in shapes)]
    assert len(without) == (way not in LEFT)


lengths_of = st.lists(st.integers(0, LENGTH), min_size=BATCH, max_size=BATCH)
scattered = st.lists(st.booleans(), min_size=BATCH * LENGTH, max_size=BATCH * LENGTH)
PAIRS: dict[str, Pair] = {}


@settings(max_examples=16, deadline=None)
@drawn(st.sampled_from([way for way in WAYS if way != "causal, added"]), lengths_of, scattered, st.booleans())
def test_any_mask_gives_the_same(way, lengths, places, ends):
    """Of two lowest numbers neither is lower here: a row that sees no key is even over those that either hides."""
    pair = PAIRS.setdefault(way, Pair(Masked(way)))
    ids, mask, labels = batch(lengths)
    pair.check(ids, mask if ends else torch.tensor(places).reshape(BATCH, LENGTH).long(), labels)


class Two(nn.Module):
    """Two sets of tokens, each with a mask of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Masked("truth"), Masked("causal, filled later")

    def forward(self, ids, mask, labels, other):
        return self.first(ids, mask, labels) + 2 * self.second(ids, other, labels)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lengths", [FULL, PADDED], ids=["full", "padded"])
@pytest.mark.parametrize("other", [FULL, PADDED], ids=["full", "padded"])
def test_of_two_masks_each_is_looked_at_by_itself(lengths, other, said):
    ids, mask, labels = batch(lengths)
    Pair(Two()).check(ids, mask, labels, batch(other)[1])
    assert [note.partition(":")[0] for note in said] == [
        name for name, each in zip(("masks 0", "masks 1"), (lengths, other), strict=True) if each is FULL
    ]


class Weighed(nn.Module):
    """What is added to scores comes with the batch."""

    def __init__(self):
        super().__init__()
        self.encoder = Encoder()

    def forward(self, ids, added):
        x = self.encoder.words(ids) + self.encoder.places.weight
        for layer in self.encoder.layers:
            x = layer(x, added)
        return x.square().mean()


def test_numbers_that_are_added_are_no_mask(said):
    pair, (ids, *_) = Pair(Weighed()), batch(FULL)
    pair.check(ids, torch.zeros(BATCH, 1, 1, LENGTH).double())
    assert len(said) == 1
    pair.check(ids, torch.zeros(BATCH, 1, 1, LENGTH).double().index_fill(3, torch.tensor([2]), 1e-3))
    pair.check(ids, -torch.zeros(BATCH, 1, 1, LENGTH).double())
    assert len(said) == 1


def test_a_mask_that_learns_is_added():
    pair = Pair(Masked("positions"))
    pair.check(*batch(FULL))
    assert biases(pair.ours) == [[(1, 2, LENGTH, LENGTH)] * 2]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["truth", "truth and causal"])
def test_rows_that_all_see_a_key_are_multiplied_by_nothing(way):
    """torch gives zeros to a row that sees no key."""
    for lengths, factors in ((FULL, 0), (PADDED, 2), ([6, 6, 0], 2)):
        pair = Pair(Masked(way))
        pair.check(*batch(lengths))
        (nodes,) = nodes_of(pair.ours)
        assert sum(node.op_type == "Mul" for node in nodes) == factors


class Weighted(nn.Module):
    """Results of attention times numbers of the batch."""

    def __init__(self):
        super().__init__()
        self.masked = Masked("truth")

    def forward(self, ids, mask, weights):
        layer = self.masked.tagger.encoder.layers[0]
        x = self.masked.tagger.encoder.words(ids)
        q, k, v = (f(x).unflatten(-1, (2, -1)).transpose(1, 2) for f in (layer.q, layer.k, layer.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, mask[:, None, None, :].bool())
        return (y * weights[:, None, :, None]).square().sum()


def test_numbers_that_results_are_multiplied_by_stay_unless_they_are_one():
    pair, (ids, mask, _) = Pair(Weighted()), batch(FULL)
    ones = torch.ones(BATCH, LENGTH).double()
    for second in (1.0, 0.5, 2.0):
        weights = ones.index_fill(1, torch.tensor([1]), second)
        pair.check(ids, mask, weights)
        pair.check(ids, batch(PADDED)[1], weights)


def test_a_plan_says_what_it_left_out_and_the_pass_can_be_turned_off():
    from tests.passes.rows.savings import batch as fed, notes, plan_of

    plan, _ = plan_of(Tagger(), fed([1, 7], FULL))
    assert notes(plan)["EliminateMasks"] == ["masks 0: 2 attentions without what hides nothing"]
    plan, _ = plan_of(Tagger(), fed([1, 7], FULL), graph_transformer={"disabled_passes": ["EliminateMasks"]})
    assert "EliminateMasks" not in notes(plan)


def test_half_precision_hides_by_lower_numbers(said):
    """In float16 −65,504 is the lowest; a copy in single precision tells what is right."""
    module = Masked("truth and causal").float()
    ours = ORTModule(copy.deepcopy(module))
    for lengths in (FULL, PADDED):
        with torch.autocast("cpu", torch.float16):
            loss = ours(*batch(lengths))
        torch.testing.assert_close(loss.float(), module(*batch(lengths)), rtol=2e-2, atol=2e-2)
    assert len(said) == 1
