"""Whole runs: the curve, both engines, both phases, and what is left in the folder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertForPreTraining

from tests.recipes.bert_pretraining.conftest import LENGTHS, log
from tests.recipes.bert_pretraining.textbook import textbook

GOLDEN = Path(__file__).with_name("golden.json")
KEYS = {
    "average_loss", "step_loss", "learning_rate", "masked_lm_loss", "next_sentence_loss", "grad_norm", "phase",
}  # fmt: skip


@pytest.mark.parametrize("schedule", ["warmup_poly", "warmup_linear", "warmup_cosine", "warmup_constant"])
def test_rates_are_those_of_upstreams_schedules(schedule: str) -> None:
    from pretraining.flags import Options, Schedule
    from run_pretraining import learning_rate

    options = Options(
        Path(), Path(), do_train=True, learning_rate=6e-3, max_steps=100, warmup_proportion=0.25,
        schedule=Schedule(schedule),
    )  # fmt: skip
    after = {
        "warmup_poly": lambda x: (1 - x) ** 0.5,
        "warmup_linear": lambda x: (1 - x) / 0.75,
        "warmup_cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
        "warmup_constant": lambda x: 1.0,
    }[schedule]
    expected = [6e-3 * (s / 25 if s < 25 else after(s / 100)) for s in range(100)]
    np.testing.assert_allclose([learning_rate(options, step) for step in range(100)], expected, rtol=1e-12)


def test_epochs_end_a_run_before_its_steps(run: Callable[..., Path], corpus: Path) -> None:
    from corpus.hdf5 import shape

    output = run(1, engine="pytorch", train_batch_size=64, max_steps=1000, num_train_epochs=1.0, log_freq=1000)
    steps = sum(shape(path)[0] // 32 for path in (corpus / "phase1").glob("*training*")) // 2
    assert 0 <= max(log(output, "checkpoint_step")) - steps <= 1
    assert len(log(output)) == 1


def test_the_kept_curve_is_the_textbooks(corpus: Path, config_file: Callable[..., Path]) -> None:
    np.testing.assert_allclose(textbook(corpus, config_file()), json.loads(GOLDEN.read_text()), rtol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ["ontrain", "pytorch"])
def test_both_phases_draw_the_kept_curve_and_leave_what_they_promise(
    engine: str, run: Callable[..., Path], corpus: Path
) -> None:
    # Two micro-batches of four with unequal labels are the textbook's one batch of eight; phases may cut differently.
    run(1, engine=engine, gradient_accumulation_steps=1)
    output = run(2, engine=engine)
    np.testing.assert_allclose(log(output), json.loads(GOLDEN.read_text()), rtol=1e-4)
    assert sorted(path.name for path in output.glob("ckpt_*")) == ["ckpt_10", "ckpt_6", "ckpt_9"]
    assert set(log(output, "checkpoint_step")) == {3, 6, 9, 10}
    rows = [json.loads(line) for line in (output / "dllogger.json").read_text().splitlines()]
    assert all(row["type"] == "LOG" and {"timestamp", "elapsedtime", "datetime"} <= set(row) for row in rows)
    assert [row["step"] for row in rows if "step_loss" in row["data"]][5:8] == [[0, 6], [0, 1], [0, 2]]
    assert all(set(row["data"]) >= KEYS for row in rows if "step_loss" in row["data"])
    assert [row["data"]["SEED"] for row in rows if "SEED" in row["data"]] == [42, 42]
    assert log(output, "Config")[0]["train_batch_size"] == 8
    (end,) = (row["data"] for row in rows if row["step"] == [] and row["data"]["phase"] == 2)
    assert end["final_loss"] == pytest.approx(log(output)[-1], rel=1e-5)
    assert end["training_sequences"] == 32
    assert 0 < end["first_step_time"] < end["raw_train_time"] < end["e2e_train_time"]
    assert end["training_sequences_per_second"] > 0
    assert any(output.glob("events.out.*"))
    report = (output / "report.html").read_text()
    assert "BERT pre-training, phase 2" in report
    assert "src=" not in report  # one file, nothing to fetch
    _check_onnx(output, corpus)


def _check_onnx(output: Path, corpus: Path) -> None:
    """The file's scores are those of transformers' model with the checkpoint's weights."""
    from dataset import PretrainingData

    batch = next(iter(PretrainingData(corpus / "phase2", batch_size=3, seed=1)))
    session = onnxruntime.InferenceSession(str(output / "final_bert.onnx"))
    feeds = dict(zip(("input_ids", "segment_ids", "input_mask"), (tensor.numpy() for tensor in batch), strict=False))
    scores, follows = session.run(["prediction_scores", "seq_relationship_score"], feeds)
    state = load_file(output / "ckpt_10" / "model.safetensors")
    words = state["bert.embeddings.word_embeddings.weight"]
    padded = len(words)
    config = log(output, "Config")[0]["config_file"]
    sizes = json.loads(Path(config).read_text())
    model = BertForPreTraining(BertConfig(**{**sizes, "vocab_size": padded})).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert all("decoder" in name for name in missing)
    assert set(unexpected) <= {"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"}  # its buffers
    with torch.no_grad():
        expected = model(batch.input_ids, attention_mask=batch.input_mask, token_type_ids=batch.segment_ids)
    assert scores.shape == (3, LENGTHS[2][0], sizes["vocab_size"])
    np.testing.assert_allclose(scores, expected.prediction_logits[..., : sizes["vocab_size"]], atol=2e-5)
    np.testing.assert_allclose(follows, expected.seq_relationship_logits, atol=2e-5)
    phase1 = onnxruntime.InferenceSession(str(output / "phase1_bert.onnx"))
    before, _ = phase1.run(None, feeds)
    assert np.abs(before - scores).max() > 1e-3


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("ontrain", {"fp16": True, "loss_scale": 1024.0}),
        pytest.param("pytorch", {"fp16": True, "loss_scale": 1024.0}, marks=pytest.mark.thorough),
        pytest.param("ontrain", {"bf16": True}, marks=pytest.mark.thorough),
        pytest.param("pytorch", {"bf16": True}, marks=pytest.mark.thorough),
    ],
    ids=["fp16-ontrain", "fp16-pytorch", "bf16-ontrain", "bf16-pytorch"],
)
def test_mixed_precision_stays_near_the_curve(engine: str, flags: dict[str, Any], run: Callable[..., Path]) -> None:
    output = run(1, engine=engine, max_steps=6, **flags)
    np.testing.assert_allclose(log(output), json.loads(GOLDEN.read_text())[:6], rtol=2e-2)
    scales = log(output, "loss_scale")
    assert scales == ([1024.0] * 6 if "fp16" in flags else [])


@pytest.mark.parametrize("engine", ["ontrain", pytest.param("pytorch", marks=pytest.mark.thorough)])
def test_activations_that_are_computed_again_change_no_number(engine: str, run: Callable[..., Path]) -> None:
    output = run(1, engine=engine, checkpoint_activations=True, max_steps=6)
    np.testing.assert_allclose(log(output), json.loads(GOLDEN.read_text())[:6], rtol=1e-4)


@pytest.mark.usefixtures("rows_counted")
def test_the_head_works_on_labelled_rows_only(corpus: Path, config_file: Callable[..., Path], tmp_path: Path) -> None:
    from dataset import Micro, PretrainingData
    from harness.processes import Team
    from pretraining.weights import padded_size, read_config
    from run_pretraining import PretrainingStep, make_model

    from ontrain.graph import static_dims
    from tests.recipes.bert_pretraining.conftest import make_options

    options = make_options(corpus, config_file, tmp_path, gradient_accumulation_steps=1)
    config = read_config(options.config_file, "", 32)
    engine = PretrainingStep(options, make_model(config, 1), Team())
    batch = next(iter(PretrainingData(corpus / "phase1", batch_size=8, seed=1)))
    engine.update([Micro(batch)], 1e-3)
    vocab = padded_size(config.vocab_size)
    model: Any = engine.trainer.step_model()
    scores = {
        static_dims(value)
        for node in model.graph.all_nodes()
        for value in node.outputs
        if value.shape is not None and value.shape.is_static() and static_dims(value)[-1:] == (vocab,)
    }
    rows = {int(np.prod(shape[:-1])) for shape in scores} - {1, 32}  # the bias, and the weight transposed
    labels = int((batch.masked_lm_labels != -1).sum())
    assert rows
    assert max(rows) < 8 * 32 / 2
    assert min(rows) >= labels
