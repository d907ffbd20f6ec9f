"""The four steps of the BERT recipe, as printed, and the schedules of its learning rate."""

from __future__ import annotations

import math
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from ontrain import OptionError, ort_supplement
from tests.training.conftest import make_trainer

pytestmark = [pytest.mark.sampled(2), pytest.mark.usefixtures("captured_once")]

LENGTH = 6


class BertWithLoss(nn.Module):
    """A small encoder with the recipe's two losses inside, its order and names of inputs, and names as BERT's."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(40, 16), nn.Embedding(2, 16)
        self.LayerNorm = nn.LayerNorm(16)
        self.attention = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
        self.pooler, self.decoder, self.relationship = nn.Linear(16, 16), nn.Linear(16, 40), nn.Linear(16, 2)

    def forward(self, input_ids, segment_ids, input_mask, masked_lm_labels, next_sentence_labels):
        x = self.LayerNorm(self.words(input_ids) + self.kinds(segment_ids)) * input_mask.unsqueeze(-1)
        x = self.attention(x)
        scores, pooled = self.decoder(x), torch.tanh(self.pooler(x[:, 0]))
        words = nn.functional.cross_entropy(scores.flatten(0, 1), masked_lm_labels.flatten(), ignore_index=-1)
        return words + nn.functional.cross_entropy(self.relationship(pooled), next_sentence_labels)


def arguments(**more: Any) -> SimpleNamespace:
    options = dict(
        gradient_accumulation_steps=2, max_seq_length=LENGTH, fp16=False, allreduce_post_accumulation=True,
        gpu_memory_limit_gb=32, partition_optimizer=True, learning_rate=0.05, max_steps=10, warmup_proportion=0.3,
        schedule="warmup_poly", seed=3,
    )  # fmt: skip
    return SimpleNamespace(**{**options, **more})


def batches(count: int) -> list[list[torch.Tensor]]:
    parts = []
    for _ in range(count):
        ids = torch.randint(0, 40, (3, LENGTH))
        labels = torch.where(torch.rand(3, LENGTH) < 0.4, ids, -1)
        labels[0, 0] = 1
        parts.append([ids, ids % 2, torch.ones_like(ids), labels, torch.randint(0, 2, (3,))])
    return parts


@pytest.mark.parametrize("fp16", [False, True])
def test_the_four_steps_run_as_printed(fp16, tmp_path, monkeypatch):
    alone(monkeypatch)
    args, model, data = arguments(fp16=fp16), BertWithLoss(), batches(8)
    out_path, global_step, training_steps, losses = tmp_path / "bert.onnx", 0, 0, []

    device = ort_supplement.setup_onnxruntime_with_mpi(args)
    model = ort_supplement.create_ort_trainer(args, device, model)
    for batch in data:
        training_steps += 1  # noqa: SIM113 (the recipe's own lines)
        loss, global_step = ort_supplement.run_ort_training_step(args, global_step, training_steps, model, batch)
        losses.append(float(loss))
    model.save_as_onnx(out_path)

    assert (args.world_rank, args.world_size, args.n_gpu, global_step) == (0, 1, 1, 4)
    assert np.isfinite(losses).all() and out_path.exists()
    session = onnxruntime.InferenceSession(out_path, providers=["CPUExecutionProvider"])
    assert [entry.name for entry in session.get_outputs()] == ["loss"]
    feeds = {entry.name: tensor.numpy() for entry, tensor in zip(session.get_inputs(), data[0], strict=True)}
    np.testing.assert_allclose(session.run(None, feeds)[0], model.eval_step(*data[0]), atol=1e-5)


def test_a_recipe_trains_as_the_later_trainer_with_the_same_settings():
    from ontrain.training import optim

    torch.manual_seed(1)
    ours, theirs, data = BertWithLoss(), BertWithLoss(), batches(6)
    theirs.load_state_dict(ours.state_dict())
    args = arguments()
    device = ort_supplement.setup_onnxruntime_with_mpi(args)
    trainer = ort_supplement.create_ort_trainer(args, torch.device("cpu") if device.type == "cuda" else device, ours)
    no_decay = [n for n, _ in theirs.named_parameters() if any(p in n for p in ("bias", "gamma", "beta", "LayerNorm"))]
    config = optim.LambConfig(
        [{"params": no_decay, "lambda_coef": 0.0}], lr=1.0, lambda_coef=0.01, do_bias_correction=True
    )
    desc = ort_supplement.bert_model_description(args).as_dict()
    later = make_trainer(theirs, config, desc=desc, loss_fn=None, batch={"gradient_accumulation_steps": 2})
    step = 0
    for number, batch in enumerate(data, 1):
        config.lr = 0.05 * (step / 10 / 0.3 if step / 10 < 0.3 else (1 - step / 10) ** 0.5)
        loss, step = ort_supplement.run_ort_training_step(args, step, number, trainer, batch)
        np.testing.assert_allclose(loss, later.train_step(*batch), rtol=1e-6)


FORMULAS = {
    "warmup_cosine": lambda x: 0.5 * (1 + math.cos(math.pi * x)),
    "warmup_constant": lambda x: 1.0,
    "warmup_linear": lambda x: (1 - x) / 0.7,
    "warmup_poly": lambda x: math.sqrt(1 - x),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_schedule_follows_its_formula_after_the_warmup(name):
    args = arguments(learning_rate=2.0)
    for step in range(11):
        wanted = step / 10 / 0.3 if step < 3 else FORMULAS[name](step / 10)
        assert ort_supplement.get_lr(args, step, name) == pytest.approx(2.0 * wanted, abs=1e-12)
    assert ort_supplement.get_lr(arguments(max_steps=-1), 5, name) == 0.05
    assert isinstance(ort_supplement.get_lr(args, 12, name), float)  # past the end, where a root of 1 − x is none


def test_a_schedule_that_does_not_exist_is_told_the_nearest():
    with pytest.raises(OptionError, match="'warmup_polly'(.|\n)*'warmup_poly'"):
        ort_supplement.get_lr(arguments(), 1, "warmup_polly")


def test_decay_is_mapped_by_name():
    assert ort_supplement.map_optimizer_attributes("encoder.LayerNorm.weight")["lambda"] == 0.0
    assert ort_supplement.map_optimizer_attributes("query.bias")["lambda"] == 0.0
    assert ort_supplement.map_optimizer_attributes("query.weight") == {
        "alpha": 0.9, "beta": 0.999, "lambda": 0.01, "epsilon": 1e-6,
    }  # fmt: skip


LAUNCHED = {
    "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000",
}  # fmt: skip


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what a launcher may have said to the tests themselves."""
    for name in list(os.environ):
        if name.startswith(("OMPI_", "SLURM_", "AZ_BATCH")) or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            monkeypatch.delenv(name)


def test_the_launcher_says_which_process_this_is(monkeypatch):
    alone(monkeypatch)
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    args = arguments(seed=None)
    ort_supplement.setup_onnxruntime_with_mpi(args)
    assert (args.world_rank, args.world_size, args.local_size) == (5, 8, 4)
    assert (ort_supplement.get_global_size(), ort_supplement.get_local_rank()) == (8, 1)
    asked = []
    monkeypatch.setattr("ontrain.training.processes.join", lambda options, device: asked.append(options.distributed))
    ort_supplement.create_ort_trainer(args, "cpu", BertWithLoss())
    assert (asked[0].world_rank, asked[0].world_size) == (5, 8)


def test_torch_distributed_is_told_what_the_launcher_said(monkeypatch):
    alone(monkeypatch)
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NCCL_IB_DISABLE")
    for name in names:
        # Set and taken away again, so that the test leaves nothing behind.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    ort_supplement.set_environment_variables_for_nccl_backend(IB=False)
    assert [os.environ[name] for name in names] == ["5", "8", "1", "4", "10.0.0.4", "6000", "1"]
    ort_supplement.set_environment_variables_for_nccl_backend(single_node=True)
    assert os.environ["MASTER_ADDR"] == "127.0.0.1"


def test_a_rank_that_is_no_number_is_refused(monkeypatch):
    alone(monkeypatch)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "first")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
    with pytest.raises(OptionError, match="OMPI_COMM_WORLD_RANK is 'first'"):
        ort_supplement.get_world_rank()
