"""The cache of keys and values that Hugging Face's models return: eager's, or refused when somebody reads it."""

from __future__ import annotations

import copy

import pytest
import torch

from ontrain.errors import InputError
from ontrain.training.ortmodule import ORTModule

transformers = pytest.importorskip("transformers")
IDS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


@pytest.fixture(scope="module")
def plain():
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=8, vocab_size=20, n_positions=8, bos_token_id=1, eos_token_id=2,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.parametrize("training", [True, False])
def test_a_cache_that_is_asked_for_is_eagers(plain, training):
    model = ORTModule(copy.deepcopy(plain).train(training))
    ours = model(IDS, labels=IDS, use_cache=True).past_key_values
    theirs = plain.train(training)(IDS, labels=IDS, use_cache=True).past_key_values
    assert type(ours) is type(theirs) and ours.get_seq_length() == theirs.get_seq_length()
    for found, expected in zip(ours.layers, theirs.layers, strict=True):
        torch.testing.assert_close(found.keys, expected.keys)
        torch.testing.assert_close(found.values, expected.values)


@pytest.mark.parametrize("training", [True, False])
def test_a_cache_of_the_configuration_is_refused_when_it_is_read(plain, training):
    model = ORTModule(copy.deepcopy(plain).train(training))
    result, expected = model(IDS, labels=IDS), plain.train(training)(IDS, labels=IDS)
    torch.testing.assert_close(result.logits, expected.logits)
    assert list(result) == list(expected) and model.config.use_cache is True
    cache = copy.deepcopy(result.past_key_values)
    assert not hasattr(cache, "dtype")  # as libraries ask that cast all outputs
    for read in (len, list, lambda one: one[0], lambda one: one.get_seq_length()):
        with pytest.raises(InputError, match="use_cache=True"):
            read(cache)


def test_a_model_that_makes_no_cache_has_none():
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=20,
    )  # fmt: skip
    assert ORTModule(transformers.BertModel(config))(IDS).past_key_values is None
