"""The exported file with its key-value cache: against transformers' own generation and samplers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from lm.decoding import Decoder, Exporter, Sampler, greedy
from lm.evaluation import mean_loss, onnx_loss, torch_loss
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.generation import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ontrain.errors import InputError

END, POSITIONS = 60, 24


def make_model(end: int | None = None) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=61, n_layer=2, n_embd=32, n_head=4, n_positions=POSITIONS, bos_token_id=end, eos_token_id=end
    )
    torch.manual_seed(1)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():  # So that attention matters, and texts are not one token over and over.
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.mul_(4 if "wte" in name else 20)
    return model.eval()


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    return make_model()


@pytest.fixture(scope="module")
def path(model: GPT2LMHeadModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder") / "model.onnx"
    Exporter(model.train()).save(path)
    assert model.training  # exported in evaluation mode, given back as it was
    model.eval()
    return path


@pytest.fixture(scope="module")
def ids() -> np.ndarray:
    """Three beginnings that this model continues with different texts."""
    return np.random.default_rng(0).integers(0, END, (3, 9))


def continued(model: GPT2LMHeadModel, ids: np.ndarray, new: int) -> torch.Tensor:
    """What transformers writes. Without a mask it would take the pad token in a beginning for padding."""
    tensor, pad = torch.from_numpy(ids), model.config.eos_token_id or 0
    return model.generate(
        tensor, attention_mask=torch.ones_like(tensor), do_sample=False, max_new_tokens=new, pad_token_id=pad
    )


@pytest.mark.parametrize("length", [1, 2, 9])
def test_greedy_text_is_that_of_transformers_token_for_token(
    model: GPT2LMHeadModel, path: Path, ids: np.ndarray, length: int
) -> None:
    new = POSITIONS - length
    wanted = continued(model, ids[:, :length], new)
    tokens = Decoder(path).generate(ids[:, :length], new)
    assert tokens.tolist() == wanted.tolist()
    assert len({tuple(row) for row in tokens[:, length:].tolist()}) == 3
    assert all(len(set(row)) >= 4 for row in tokens[:, length:].tolist())


def test_a_row_that_ends_is_filled_up_while_the_others_go_on(
    model: GPT2LMHeadModel, path: Path, ids: np.ndarray, tmp_path: Path
) -> None:
    free = Decoder(path).generate(ids, 10)
    end = int(free[0, 12])  # what the first row writes as its fourth token
    ending = make_model(end)
    Exporter(ending).save(tmp_path / "model.onnx")
    tokens = Decoder(tmp_path / "model.onnx").generate(ids, 10)
    wanted = continued(ending, ids, 10)
    assert tokens.tolist() == wanted.tolist()
    assert (tokens[0, 12:] == end).all() and (tokens[1:] == free[1:, : tokens.shape[1]]).all(axis=1).any()


def test_cached_scores_are_those_of_the_whole_text(model: GPT2LMHeadModel, path: Path, ids: np.ndarray) -> None:
    decoder, seen = Decoder(path), []

    def choose(scores: np.ndarray) -> np.ndarray:
        seen.append(scores)
        return ids[:, len(seen)]

    decoder.generate(ids[:, :1], 8, choose)
    with torch.no_grad():
        whole = model(input_ids=torch.from_numpy(ids)).logits.numpy()
    np.testing.assert_allclose(np.stack(seen, 1), whole[:, :8], atol=2e-5)
    np.testing.assert_allclose(decoder.scores(ids), whole, atol=2e-5)


def test_perplexity_is_the_same_in_both_and_the_formulas(
    model: GPT2LMHeadModel, path: Path, rng: np.random.Generator
) -> None:
    rows = [rng.integers(0, END, (2, 24)), rng.integers(0, END, (1, 7))]
    in_torch, in_onnx = torch_loss(model, iter(rows)), onnx_loss(Decoder(path), iter(rows))
    with torch.no_grad():
        sums = [
            torch.nn.functional.cross_entropy(
                model(input_ids=ids).logits[:, :-1].double().flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"
            ).item()
            for ids in map(torch.from_numpy, rows)
        ]
    assert in_torch == pytest.approx(sum(sums) / (2 * 23 + 6), rel=1e-6)
    assert in_onnx == pytest.approx(in_torch, abs=1e-6)
    sure = mean_loss(lambda ids: 1e4 * torch.eye(61)[torch.from_numpy(np.roll(ids, -1, 1))], iter(rows))
    assert sure == 0.0


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("top_k", [0, 1, 5])
@pytest.mark.parametrize("top_p", [0.01, 0.6, 1.0])
def test_probabilities_are_those_of_transformers_samplers(
    rng: np.random.Generator, temperature: float, top_k: int, top_p: float
) -> None:
    scores = rng.standard_normal((4, 40)).astype(np.float32) * 2
    chain = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        chain.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        chain.append(TopPLogitsWarper(top_p))
    wanted = chain(torch.zeros(4, 1), torch.from_numpy(scores).double()).softmax(-1)
    probabilities = Sampler(rng, temperature, top_k, top_p).probabilities(scores)
    np.testing.assert_allclose(probabilities, wanted, atol=1e-12)


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    scores = np.log(np.array([[0.4, 0.05, 0.3, 0.05, 0.2]], np.float32))
    sampler = Sampler(np.random.default_rng(5), temperature=1.0, top_k=4, top_p=0.85)
    # The four likeliest without a 0.05, renormalised to 0.95; three of them have 0.9 / 0.95 > 0.85 already.
    expected = np.array([0.4, 0, 0.3, 0, 0.2]) / 0.9
    drawn = sampler(np.repeat(scores, 20_000, axis=0))
    counts = np.bincount(drawn, minlength=5)
    assert counts[[1, 3]].sum() == 0
    possible = expected > 0
    statistic = float(((counts - 20_000 * expected)[possible] ** 2 / (20_000 * expected[possible])).sum())
    assert statistic < 13.8  # chi-square of 2 degrees of freedom: one in a thousand seeds is above


def test_a_seed_gives_one_text_and_another_seed_another(path: Path, ids: np.ndarray) -> None:
    decoder = Decoder(path)
    same, again, other = (decoder.generate(ids, 12, Sampler(np.random.default_rng(s), 2.0)).tolist() for s in (1, 1, 2))
    assert same == again != other
    assert decoder.generate(ids, 12, Sampler(np.random.default_rng(0), top_k=1)).tolist() == (
        decoder.generate(ids, 12, greedy).tolist()
    )


def test_the_file_is_standard_and_names_its_cache(path: Path) -> None:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [entry.domain for entry in model.opset_import] == [""]
    names = [f"{layer}.{kind}" for layer in range(2) for kind in ("key", "value")]
    assert [entry.name for entry in model.graph.input] == ["input_ids", *(f"past_key_values.{n}" for n in names)]
    assert [entry.name for entry in model.graph.output] == ["logits", *(f"present.{n}" for n in names)]
    dims = [dimension.dim_param or dimension.dim_value for dimension in model.graph.input[1].type.tensor_type.shape.dim]
    assert dims == ["batch", 4, "past_length", 8]
    read = {name for node in model.graph.node for name in node.input}
    assert {tensor.name for tensor in model.graph.initializer} <= read  # onnxruntime warns of others


def test_what_was_captured_once_is_written_with_the_present_weights(tmp_path: Path, ids: np.ndarray) -> None:
    model = make_model()
    exporter = Exporter(model)
    exporter.save(tmp_path / "model.onnx")
    before = Decoder(tmp_path / "model.onnx").scores(ids)
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight *= 1.5
        wanted = model(input_ids=torch.from_numpy(ids)).logits.numpy()
    exporter.save(tmp_path / "model.onnx")
    after = Decoder(tmp_path / "model.onnx").scores(ids)
    np.testing.assert_allclose(after, wanted, atol=5e-5)
    assert np.abs(after - before).max() > 1e-2


def test_texts_that_cannot_be_written_are_refused(path: Path, ids: np.ndarray, tmp_path: Path) -> None:
    decoder = Decoder(path)
    with pytest.raises(InputError, match="the model has 24 positions"):
        decoder.generate(ids, POSITIONS - 8)
    assert decoder.generate(ids, POSITIONS - 9).shape == (3, POSITIONS)
    with pytest.raises(InputError, match="nothing to continue"):
        decoder.generate(ids[:, :0], 3)
    with pytest.raises(InputError, match="no model file"):
        Decoder(tmp_path / "model.onnx")
