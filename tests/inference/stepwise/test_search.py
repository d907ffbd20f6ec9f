"""Searches for text and in speech on the torch provider alone, token for token against stock onnxruntime."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnxruntime
import pytest

import ontrain
from ontrain.capture import load_onnx
from ontrain.inference.stepwise.search.draws import Generator
from tests.inference.stepwise.searches import PAD, SIZE, decoder_search, feeds_of, transcription, translation

TORCH, CPU = ["TorchExecutionProvider"], ["CPUExecutionProvider"]
GREEDY = ["input_ids", "max_length", "min_length", "repetition_penalty"]
MASKS = ["vocab_mask", "prefix_vocab_mask", "attention_mask"]
BEAMS = [*GREEDY[:3], "num_beams", "num_return_sequences", "length_penalty", "repetition_penalty"]
SCORES = ["sequences", "sequences_scores", "scores"]
SPEECH = ["input_features", *BEAMS[1:], "", "", "", "decoder_input_ids"]
STAMPED = [*SPEECH, "logits_processor", "", "", "temperature"]
TOKENS = {
    "eos_token_id": 4, "translate_token_id": 5, "transcribe_token_id": 6, "start_of_lm_token_id": 7,
    "no_speech_token_id": 3, "no_timestamps_token_id": 8, "beginning_timestamp_token_id": 9,
}  # fmt: skip
"""Of Whisper; timestamps are 9 to 12."""
BEGUN = np.array([[1, 3], [1, 5], [2, 7]])
PROMPTS = np.array([[PAD, PAD, 3, 7], [PAD, 5, 2, 4], [6, 6, 1, 8]])


def compare(model: bytes, *feeds: dict[str, np.ndarray]) -> None:
    """Run the model on both.

    Of sequences [batch, length] stock leaves what was in its memory behind the token that ends the last one.
    """
    mine, theirs = ontrain.InferenceSession(model, providers=TORCH), onnxruntime.InferenceSession(model, providers=CPU)
    for fed in feeds:
        results, expected = mine.run(None, fed), theirs.run(None, fed)
        (sequences, *scores), (tokens, *totals) = results, expected
        assert sequences.shape == tokens.shape and sequences.dtype == tokens.dtype
        end = sequences.shape[-1] if sequences.ndim == 3 else int(np.nonzero((sequences != PAD).any(0))[0].max()) + 2
        np.testing.assert_array_equal(sequences[..., :end], tokens[..., :end])
        for own, stock in zip(scores, totals, strict=True):
            np.testing.assert_allclose(own, stock, rtol=1e-4, atol=1e-4)


def numbers(length: int = 16, **changed: float) -> dict[str, float]:
    plain = {"max_length": length, "min_length": 0, "num_beams": 3, "num_return_sequences": 2}
    return {**plain, "length_penalty": 1.0, "repetition_penalty": 1.0, "seed": 5, **changed}


def test_greedy_search_gives_onnxruntimes_tokens():
    model = decoder_search("GreedySearch", [*GREEDY, "", "", ""], ["sequences"], eos_token_id=12)
    settings = numbers(), numbers(repetition_penalty=1.6), numbers(repetition_penalty=0.7, min_length=12)
    compare(model, *(feeds_of(GREEDY, PROMPTS, s) for s in settings), feeds_of(GREEDY, PROMPTS[:1, 2:], numbers(9)))


def test_greedy_search_obeys_masks_and_repeats_no_pairs():
    names = [*GREEDY, *MASKS]
    model = decoder_search("GreedySearch", names, ["sequences"], eos_token_id=12, no_repeat_ngram_size=2)
    compare(model, *(feeds_of(names, PROMPTS, numbers(), seed) for seed in range(4)))


def test_ended_sequences_are_filled_up_with_padding():
    model = decoder_search("GreedySearch", [*GREEDY, "", "", ""], ["sequences"], eos_token_id=12)
    whole = ontrain.InferenceSession(model, providers=TORCH).run(None, feeds_of(GREEDY, PROMPTS, numbers()))[0]
    token = int(whole[0, 6])
    proto = onnx.load_from_string(model)
    next(a for a in proto.graph.node[0].attribute if a.name == "eos_token_id").i = token
    (sequences,) = ontrain.InferenceSession(proto, providers=TORCH).run(None, feeds_of(GREEDY, PROMPTS[:1], numbers()))
    end = int(np.argmax(whole[0, 4:] == token)) + 4
    np.testing.assert_array_equal(sequences[0, :end], whole[0, :end])
    assert end < 16 and (sequences[0, end:] == PAD).all()
    compare(proto.SerializeToString(), feeds_of(GREEDY, PROMPTS[:1], numbers()))


@pytest.mark.parametrize("early", [0, 1])
def test_beam_search_gives_onnxruntimes_tokens_and_scores(early):
    settings = [
        numbers(), numbers(length_penalty=2.0), numbers(length_penalty=-1.0, num_beams=5, num_return_sequences=4),
        numbers(repetition_penalty=1.4, min_length=10), numbers(num_beams=1, num_return_sequences=1), numbers(5),
    ]  # fmt: skip
    for eos in (2, 8):
        model = decoder_search("BeamSearch", [*BEAMS, "", "", ""], SCORES, eos_token_id=eos, early_stopping=early)
        # Where a search ends early, the rest of the table of scores is stock's memory.
        endless = [{**s, "min_length": s["max_length"] - 1} for s in settings]
        compare(model, *(feeds_of(BEAMS, PROMPTS, s) for s in endless))
        proto = onnx.load_from_string(model)
        del proto.graph.node[0].output[2], proto.graph.output[2]
        compare(proto.SerializeToString(), *(feeds_of(BEAMS, PROMPTS, s) for s in settings))


def test_beam_search_obeys_masks_and_repeats_no_triples():
    names = [*BEAMS, *MASKS]
    model = decoder_search("BeamSearch", names, SCORES[:2], eos_token_id=4, no_repeat_ngram_size=3)
    compare(model, *(feeds_of(names, PROMPTS, numbers(), seed) for seed in range(4)))


@pytest.mark.parametrize("starts", [False, True])
def test_translations_are_onnxruntimes(starts):
    settings = numbers(), numbers(length_penalty=0.5, num_beams=4), numbers(7, repetition_penalty=1.3, min_length=5)
    model = translation([*BEAMS, "", "", ""], SCORES[:2], starts=starts, eos_token_id=4)
    compare(model, *(feeds_of(BEAMS, PROMPTS, s) for s in settings))
    names = [*BEAMS, "vocab_mask", "", "attention_mask"]
    model = translation(names, SCORES[:2], starts=starts, eos_token_id=9, early_stopping=1, no_repeat_ngram_size=2)
    compare(model, *(feeds_of(names, PROMPTS, numbers(), seed) for seed in range(3)))


@pytest.mark.parametrize("reads_hidden", [False, True])
def test_transcriptions_are_onnxruntimes(reads_hidden):
    settings = numbers(), numbers(length_penalty=0.5, num_beams=5), numbers(9, repetition_penalty=1.4, min_length=7)
    model = transcription("BeamSearch", SPEECH, SCORES[:2], reads_hidden=reads_hidden, eos_token_id=4)
    compare(model, *(feeds_of(SPEECH, BEGUN, s) for s in settings), feeds_of(SPEECH, BEGUN[:1, :1], numbers(6)))
    plain = SPEECH[:7]  # begins with decoder_start_token_id
    model = transcription("BeamSearch", plain, SCORES[:2], reads_hidden=reads_hidden, eos_token_id=12, early_stopping=1)
    compare(model, *(feeds_of(plain, BEGUN, s) for s in settings))


@pytest.mark.parametrize("begun", [BEGUN, [[1, 9], [1, 10], [1, 12]], [[1, 9, 9], [1, 3, 12], [9, 11, 3]]], ids=str)
def test_timestamps_stand_where_onnxruntime_has_them(begun):
    model = transcription("WhisperBeamSearch", STAMPED, SCORES[:2], reads_hidden=False, **TOKENS)
    for logits_processor, temperature in ((0, 1.0), (1, 1.0), (1, 2.5)):
        changed = {"logits_processor": logits_processor, "temperature": temperature, "num_beams": 4}
        compare(model, *(feeds_of(STAMPED, np.array(begun), numbers(**changed), seed) for seed in range(2)))


def test_a_search_in_speech_is_one_without_a_stated_kind_of_model():
    proto = onnx.load_from_string(transcription("WhisperBeamSearch", SPEECH, SCORES[:2], reads_hidden=True, **TOKENS))
    attributes = proto.graph.node[0].attribute
    attributes.remove(next(attribute for attribute in attributes if attribute.name == "model_type"))
    compare(proto.SerializeToString(), feeds_of(SPEECH, BEGUN, numbers()))


def test_how_likely_there_is_no_speech_is_the_share_of_its_token_in_the_first_choice():
    model = transcription("WhisperBeamSearch", SPEECH, [*SCORES, "", "no_speech_probs"], reads_hidden=False, **TOKENS)
    *_, scores, silence = ontrain.InferenceSession(model, providers=TORCH).run(None, feeds_of(SPEECH, BEGUN, numbers()))
    np.testing.assert_allclose(silence, np.exp(scores[0, :, 0, TOKENS["no_speech_token_id"]]), rtol=1e-5)


def test_a_transcription_that_cannot_be_is_refused_with_a_reason():
    model = transcription("WhisperBeamSearch", STAMPED, SCORES[:1], reads_hidden=False, eos_token_id=4)
    session = ontrain.InferenceSession(model, providers=TORCH)
    feeds = feeds_of(STAMPED, BEGUN, numbers(logits_processor=1, temperature=1.0))
    with pytest.raises(ontrain.OntrainError, match="translate_token_id is -1(.|\n)*places timestamps"):
        session.run(None, feeds)
    proto = onnx.load_from_string(model)
    proto.graph.node[0].output.extend(["", "", "cross_qk"])
    with pytest.raises(ontrain.GraphError, match="asked for cross_qk(.|\n)*for GPUs"):
        ontrain.InferenceSession(proto, providers=TORCH)
    proto = onnx.load_from_string(model)
    encoder = next(a.g for a in proto.graph.node[0].attribute if a.name == "encoder")
    del encoder.output[-1]
    with pytest.raises(ontrain.GraphError, match="the encoder has 2 inputs and 5 outputs"):
        ontrain.InferenceSession(proto, providers=TORCH)


@pytest.mark.skipif(sys.platform != "linux", reason="onnxruntime draws with the C++ library of its platform")
@pytest.mark.parametrize("custom", [0, 1])
def test_a_seed_gives_the_tokens_that_onnxruntime_draws(custom):
    names = [*GREEDY, "", "", "", "", "seed"]
    for temperature, top_p, least in ((1.0, 0.6, 1), (3.0, 0.9, 3), (0.5, 0.3, 1)):
        model = decoder_search(
            "Sampling", names, ["sequences"], eos_token_id=12, custom=custom, temperature=temperature, top_p=top_p,
            min_tokens_to_keep=least, filter_value=-float("inf"),
        )  # fmt: skip
        compare(model, *(feeds_of(names, PROMPTS, numbers(24, min_length=23, seed=seed)) for seed in (0, 1, 77)))


def test_numbers_are_those_of_the_standard_librarys_generator():
    generator = Generator(1)
    for _ in range(5000):
        generator.uniform()
    assert generator._state == 1043618065  # the C++ standard states the 10,000th


def test_present_tokens_of_the_mask_are_less_likely():
    names = [*GREEDY, "", "", "", "presence_mask", "seed"]
    model = decoder_search("Sampling", names, ["sequences"], eos_token_id=12, presence_penalty=1e4, top_p=1.0)
    feeds = feeds_of(names, PROMPTS, numbers(24))
    feeds["presence_mask"][:, 6:] = 1
    feeds["presence_mask"][:, 1:6] = 0
    (sequences,) = ontrain.InferenceSession(model, providers=TORCH).run(None, feeds)
    assert sequences[:, 4:].max() < 6


def test_beside_another_provider_the_first_runs_a_search():
    model = decoder_search("GreedySearch", [*GREEDY, "", "", ""], ["sequences"], eos_token_id=12)
    session = ontrain.InferenceSession(model, providers=[*TORCH, *CPU])
    expected = onnxruntime.InferenceSession(model, providers=CPU).run(None, feeds_of(GREEDY, PROMPTS, numbers()))
    np.testing.assert_array_equal(session.run(None, feeds_of(GREEDY, PROMPTS, numbers()))[0], expected[0])
    assert session.get_providers()[0] == TORCH[0]


def test_what_makes_no_sense_is_refused_with_a_reason():
    model = decoder_search("BeamSearch", [*BEAMS, "vocab_mask", "", ""], SCORES[:1], eos_token_id=4)
    session = ontrain.InferenceSession(model, providers=TORCH)
    names = [*BEAMS, "vocab_mask"]
    for changed, message in (
        (numbers(4), "max_length is 4(.|\n)*4 tokens are there"),
        (numbers(num_return_sequences=4), "num_return_sequences is 4"),
        (numbers(repetition_penalty=0.0), "repetition_penalty is 0"),
    ):
        with pytest.raises(ontrain.OntrainError, match=message):
            session.run(None, feeds_of(names, PROMPTS, changed))
    proto = onnx.load_from_string(model)
    proto.graph.input[-1].type.tensor_type.shape.dim[0].dim_param = "any"
    feeds = feeds_of(names, PROMPTS, numbers()) | {"vocab_mask": np.ones(SIZE + 1, np.int32)}
    with pytest.raises(ontrain.OntrainError, match="for 14 tokens, and the decoder knows 13"):
        ontrain.InferenceSession(proto, providers=TORCH).run(None, feeds)


def test_graphs_that_are_no_models_of_language_are_refused():
    model = onnx.load_from_string(decoder_search("GreedySearch", [*GREEDY, "", "", ""], ["sequences"], eos_token_id=4))
    decoder = next(a.g for a in model.graph.node[0].attribute if a.name == "decoder")
    decoder.input[3].type.tensor_type.shape.dim[2].dim_param = "heads"
    with pytest.raises(ontrain.GraphError, match="past_0(.|\n)*heads and width as numbers"):
        ontrain.InferenceSession(model, providers=TORCH)
    del decoder.output[1]
    with pytest.raises(ontrain.GraphError, match="'decoder' has 4 inputs and 1 outputs"):
        ontrain.InferenceSession(model, providers=TORCH)


def test_a_search_cannot_be_trained_through():
    model = decoder_search("GreedySearch", [*GREEDY, "", "", ""], ["sequences"], eos_token_id=12)
    with pytest.raises(ontrain.OntrainError, match="GreedySearch"):
        load_onnx(model)
