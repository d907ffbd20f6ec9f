"""Rates, batches, and the loop against an independent one."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from harness.files import DataError
from harness.finetuning.examples import PAD_TO, Examples, epoch_updates
from harness.finetuning.flags import Engine, Habits, Settings
from harness.finetuning.training import train
from rich.console import Console
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

QUIET = Console(quiet=True)


def made_up(rng: np.random.Generator, count: int = 13, width: int = 40) -> Examples:
    lengths = rng.integers(3, width + 1, count)
    ids = rng.integers(5, 50, (count, width)).astype(np.int32)
    mask = (np.arange(width) < lengths[:, None]).astype(np.int32)
    inputs = {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}
    return Examples(inputs, {"labels": rng.integers(0, 2, count)})


def tiny(dropout: float = 0.0) -> BertForSequenceClassification:
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    chances = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    named = {"problem_type": "single_label_classification", "num_labels": 2}
    return BertForSequenceClassification(
        BertConfig(vocab_size=50, max_position_embeddings=48, **sizes, **chances, **named)
    )


@pytest.mark.parametrize("proportion", [0.0, 0.1, 1.0])
def test_rates_are_those_of_transformers_linear_schedule(proportion: float) -> None:
    settings = Settings(learning_rate=0.5, warmup_proportion=proportion)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = get_linear_schedule_with_warmup(optimizer, int(np.ceil(37 * proportion)), 37)
    for update in range(37):
        assert settings.rate(update, 37) == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()


def test_updates_by_hand() -> None:
    settings = Settings(per_gpu_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=2.5)
    assert settings.updates_an_epoch(17) == 3  # 8 + 8 + 1
    assert settings.updates(17) == 8  # 7.5 rounded up
    assert replace(settings, max_steps=5).updates(17) == 5


@pytest.mark.parametrize("grouped", [False, True])
def test_an_epoch_takes_every_row_once_in_an_order_of_its_own(rng: np.random.Generator, grouped: bool) -> None:
    examples = made_up(rng)
    settings = Settings(per_gpu_train_batch_size=3, gradient_accumulation_steps=2, group_by_length=grouped)
    orders = []
    for epoch in (0, 0, 1):
        updates = list(epoch_updates(examples, settings, epoch))
        assert [len(update) for update in updates] == [2, 2, 1]
        rows = np.concatenate([batch for update in updates for batch in update])
        assert sorted(rows.tolist()) == list(range(13))
        orders.append(rows.tolist())
    assert orders[0] == orders[1] != orders[2]


def test_grouping_by_length_saves_padding(rng: np.random.Generator) -> None:
    examples = made_up(rng, count=200)

    def tokens(grouped: bool) -> int:
        settings = Settings(per_gpu_train_batch_size=4, group_by_length=grouped)
        return sum(
            examples.batch(batch)["input_ids"].numel()
            for update in epoch_updates(examples, settings, 0)
            for batch in update
        )

    assert tokens(grouped=True) < 0.8 * tokens(grouped=False)


def test_a_batch_is_as_long_as_its_longest_row_rounded_up(rng: np.random.Generator) -> None:
    examples = made_up(rng)
    rows = np.argsort(examples.lengths)
    for chosen in (rows[:1], rows[:4], rows):
        batch = examples.batch(chosen)
        longest, width = int(examples.lengths[chosen].max()), batch["input_ids"].shape[1]
        assert width == 40 if longest > 2 * PAD_TO else width % PAD_TO == 0 and longest <= width < longest + PAD_TO
        np.testing.assert_array_equal(batch["input_ids"], examples.inputs["input_ids"][chosen, :width])
        assert batch["attention_mask"].sum() == examples.lengths[chosen].sum()  # nothing is cut off
    assert examples.batch(rows[:1], whole=True)["input_ids"].shape == (1, 40)


@pytest.mark.parametrize("engine", Engine)
def test_the_loop_ends_with_the_weights_of_an_independent_one(
    engine: Engine, rng: np.random.Generator, tmp_path: Path
) -> None:
    examples = made_up(rng)
    settings = Settings(
        engine=engine, per_gpu_train_batch_size=2, gradient_accumulation_steps=3, learning_rate=3e-3,
        weight_decay=0.1, num_train_epochs=2, max_grad_norm=0.5, warmup_proportion=0.25,
    )  # fmt: skip
    ours, theirs = tiny(), tiny()
    done = train(ours, examples, settings, Habits(), tmp_path, QUIET)

    decayed = [p for n, p in theirs.named_parameters() if n.endswith("weight") and "LayerNorm" not in n]
    rest = [p for n, p in theirs.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, eps=1e-8)
    schedule = get_linear_schedule_with_warmup(optimizer, 2, 6)
    losses = []
    for epoch in range(2):
        for update in epoch_updates(examples, settings, epoch):
            # The update's rows as one batch: accumulation is the same thing in parts.
            loss = theirs(**examples.batch(np.concatenate(update), whole=True)).loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    assert done.updates == 6
    assert done.losses == pytest.approx(losses, rel=1e-5)
    for (name, parameter), counterpart in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        # key.bias has gradient zero but for rounding, which Adam makes steps of.
        if not name.endswith("key.bias"):
            torch.testing.assert_close(parameter, counterpart, rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize(
    ("name", "value"),
    [("per_gpu_train_batch_size", 0), ("learning_rate", -1.0), ("warmup_proportion", 1.5), ("seed", -1)],
)
def test_a_number_out_of_range_is_named(name: str, value: float) -> None:
    with pytest.raises(DataError, match=f"--{name} {value} is not between"):
        Settings(**{name: value})


class Stopping(Console):
    """Somebody who presses Ctrl-C, or a scheduler that ends a job, when the second update is said."""

    def __init__(self, by: signal.Signals) -> None:
        super().__init__(quiet=True)
        self.by = by

    def print(self, *said: object, **more: object) -> None:
        if str(said[0]).startswith("step 2/"):
            signal.raise_signal(self.by)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_update_end_and_the_rerun_goes_on(
    by: signal.Signals, rng: np.random.Generator, tmp_path: Path
) -> None:
    examples = made_up(rng)
    settings = Settings(Engine.pytorch, per_gpu_train_batch_size=4, num_train_epochs=2, learning_rate=1e-3)
    habits = Habits(logging_steps=1)
    whole, parts = tiny(dropout=0.2), tiny(dropout=0.2)
    expected = train(whole, examples, settings, habits, tmp_path / "whole", QUIET)
    handler = signal.getsignal(by)
    with pytest.raises(KeyboardInterrupt, match="interrupted after update 2 of 8"):
        train(parts, examples, settings, habits, tmp_path / "parts", Stopping(by))
    assert signal.getsignal(by) is handler
    again = tiny(dropout=0.2)
    done = train(again, examples, settings, habits, tmp_path / "parts", QUIET)
    assert done.resumed_after == 2
    assert done.losses == expected.losses
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), whole.parameters(), strict=True))
