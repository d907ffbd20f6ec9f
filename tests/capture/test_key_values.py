"""The cache of keys and values that Hugging Face's models return: eager's, or refused when somebody reads it."""

from __future__ import annotations

import copy

import pytest
import torch

from ontrain.capture import capture
from ontrain.capture.key_values import with_unread
from ontrain.capture.structure import flatten
from ontrain.errors import InputError
from ontrain.training.ortmodule import ORTModule

pytestmark = pytest.mark.sampled(4)

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
    for layer, expected in zip(ours.layers, theirs.layers, strict=True):
        torch.testing.assert_close(layer.keys, expected.keys)
        torch.testing.assert_close(layer.values, expected.values)


@pytest.mark.parametrize("training", [True, False])
def test_a_cache_of_the_configuration_is_refused_when_it_is_read(plain, training):
    model = ORTModule(copy.deepcopy(plain).train(training))
    result, expected = model(IDS, labels=IDS), plain.train(training)(IDS, labels=IDS)
    torch.testing.assert_close(result.logits, expected.logits)
    assert list(result) == list(expected) and model.config.use_cache is True
    cache = copy.deepcopy(result.past_key_values)
    assert not hasattr(cache, "dtype")  # as libraries ask that cast all outputs
    for read in (len, list, lambda cache: cache[0], lambda cache: cache.get_seq_length()):
        with pytest.raises(InputError, match="use_cache=True"):
            read(cache)


@pytest.mark.parametrize("route", ["eager", "grouped_mm"])
def test_experts_that_branch_on_values_train_beside_a_cache_of_the_configuration(route):
    config = transformers.MixtralConfig(
        vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=3, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    config._experts_implementation = route
    plain = transformers.MixtralForCausalLM(config)
    model = ORTModule(copy.deepcopy(plain))
    for ids in (IDS, IDS[:, :3] + 1):
        before = torch.get_rng_state()
        result = model(ids, labels=ids)
        assert torch.equal(torch.get_rng_state(), before)
        expected = plain(ids, labels=ids)
        result.loss.backward()
        expected.loss.backward()
        assert list(result) == list(expected) and refused(result.past_key_values)
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6)


def refused(cache):
    with pytest.raises(InputError, match="use_cache=True"):
        len(cache)
    return True


@pytest.mark.parametrize("training", [True, False])
def test_a_cache_of_the_configuration_has_its_place_in_a_tuple(plain, training):
    model = ORTModule(copy.deepcopy(plain).train(training))
    call = {"labels": IDS, "return_dict": False, "output_hidden_states": True}
    ours, theirs = model(IDS, **call), plain.train(training)(IDS, **call)
    assert type(ours) is type(theirs) and len(ours) == len(theirs)
    places = [index for index, part in enumerate(theirs) if isinstance(part, transformers.Cache)]
    assert places and all(refused(ours[index]) for index in places)
    for index, part in enumerate(theirs):
        if index not in places:
            torch.testing.assert_close(ours[index], part)


class Inner(torch.nn.Module):
    """Takes hidden states by their place among the results of a model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        results = self.model(ids, return_dict=False, output_hidden_states=True, use_cache=False)
        return results[-1][0]


def test_a_result_taken_by_its_place_is_eagers(plain):
    model = Inner(plain.eval())
    torch.testing.assert_close(ORTModule(copy.deepcopy(model))(IDS), model(IDS))


def test_a_state_space_model_has_a_place_for_its_cache():
    config = transformers.MambaConfig(
        vocab_size=20, hidden_size=8, state_size=4, num_hidden_layers=1, time_step_rank=2, pad_token_id=0,
    )  # fmt: skip
    plain = transformers.MambaForCausalLM(config).eval()
    model = ORTModule(copy.deepcopy(plain))
    with torch.no_grad():
        ours, theirs = model(IDS), plain(IDS)
        pair = model(IDS, return_dict=False), plain(IDS, return_dict=False)
    assert list(ours) == list(theirs) == ["logits", "cache_params"] and refused(ours.cache_params)
    assert [len(cache) for cache in pair] == [2, 2] and refused(pair[0][1])


def test_an_encoder_and_decoder_have_one_cache_in_its_place():
    config = transformers.T5Config(
        vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0, dropout_rate=0,
    )  # fmt: skip
    plain = transformers.T5ForConditionalGeneration(config)
    ours = ORTModule(copy.deepcopy(plain))(IDS, decoder_input_ids=IDS, return_dict=False)
    theirs = plain(IDS, decoder_input_ids=IDS, return_dict=False)
    assert [isinstance(tensor, torch.Tensor) for tensor in ours] == [
        isinstance(tensor, torch.Tensor) for tensor in theirs
    ]
    assert refused(ours[1])


@pytest.mark.parametrize("use_cache", [True, None])
def test_a_capture_with_a_cache_is_kept_on_disk(plain, use_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("ONTRAIN_CACHE_DIR", str(tmp_path))
    model = transformers.GPT2LMHeadModel(plain.config)  # without the hooks that transformers leaves behind
    first = capture(model, (IDS,), {"use_cache": use_cache, "return_dict": False})
    again = capture(model, (IDS,), {"use_cache": use_cache, "return_dict": False})
    assert first.seconds["export"] > 0 and again.seconds["export"] == 0
    assert again.output_spec == first.output_spec


def test_what_is_left_out_of_a_result_has_one_place():
    a, b, tree = torch.zeros(()), [torch.zeros(())], {"x": torch.zeros(())}

    def left_out(part, whole):
        filled = with_unread(flatten(part)[1], flatten(whole)[1])
        return filled and [child.kind for child in filled.children]

    assert left_out((a, b), (a, tree, b)) == ["tensor", "unread", "sequence"]
    assert left_out({"a": a, "b": None}, {"a": a, "c": tree, "b": tree}) == ["tensor", "unread", "unread"]
    assert left_out((a, (a, b)), (a, (tree, a, b))) == ["tensor", "sequence"]
    # Either of two, more than there is, another kind.
    assert left_out((a, b), (a, b, b)) is None
    assert left_out((a, b, b), (a, b)) is None
    assert left_out((a, b), (a, tree, tree)) is None


def test_a_model_that_makes_no_cache_has_none():
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=20,
    )  # fmt: skip
    assert ORTModule(transformers.BertModel(config))(IDS).past_key_values is None
