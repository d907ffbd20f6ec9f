"""What is computed again equals what was kept, to the bit, dropout and all."""

from __future__ import annotations

import pytest
import torch

from ontrain.graph import is_random, verify
from ontrain.passes.recompute import ClusterRequest, Recomputation
from ontrain.providers.torch.lowering import attention_tiles
from tests.passes.recompute.models import plan, sample as sample_of, session, trained

pytestmark = pytest.mark.sampled(4)

MODELS = ("bert", "gpt2", "convolutions")
LEAST = Recomputation(least=True)


def assert_same(tensors: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert tensors.keys() == other.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], other[name])] == []


@pytest.mark.parametrize("name", MODELS)
def test_training_with_as_little_memory_as_possible_is_the_same_to_the_bit(name):
    assert_same(trained(name), trained(name, LEAST))


@pytest.mark.parametrize("name", MODELS)
def test_everything_that_can_be_computed_again_may_be(name):
    everything = Recomputation(clusters=(ClusterRequest("*", recompute=True, count=-1),))
    recomputed = plan(name, everything)
    assert recomputed.recomputed is not None and recomputed.recomputed.nodes > 10
    assert_same(trained(name), trained(name, everything))


@pytest.mark.parametrize("asked", [LEAST, Recomputation(attention_dropout=True)], ids=["least", "probabilities"])
def test_attention_in_tiles_is_computed_again_with_its_mask(asked, monkeypatch):
    monkeypatch.setattr(attention_tiles, "TILED", 0)
    anew = trained.__wrapped__  # what other tests keep was computed without tiles
    assert_same(anew("gpt2"), anew("gpt2", asked))


def test_accumulated_gradients_are_the_same_to_the_bit():
    tensors = trained("bert", accumulation_steps=2)
    assert_same(tensors, trained("bert", LEAST, accumulation_steps=2))


@pytest.mark.parametrize("name", MODELS)
def test_no_random_number_is_drawn_twice(name):
    before, after = plan(name).model, plan(name, LEAST).model
    drawing = [sum(is_random(node) and len(node.inputs) < 5 for node in model.graph if node.op_type != "AttentionGrad")
               for model in (before, after)]  # fmt: skip
    assert drawing[0] == drawing[1] > 0
    assert len(after.graph) > len(before.graph)
    verify(after)


def test_masks_differ_from_step_to_step_and_repeat_with_the_seed():
    training, again = session("convolutions", LEAST), session("convolutions", LEAST)
    batch = sample_of("convolutions").batch
    # The learning rate is zero: only the masks make a difference.
    first, second = (float(training.step(batch, 0.0)["output_0"]) for _ in range(2))
    assert first != second and first == float(again.step(batch, 0.0)["output_0"])
