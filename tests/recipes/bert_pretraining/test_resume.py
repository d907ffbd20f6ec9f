"""Runs that end early: killed, interrupted, or out of room; what is kept, and that going on changes nothing."""

from __future__ import annotations

import json
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness.eager import EagerTrainer
from safetensors.torch import load_file

from ontrain.errors import CheckpointError
from tests.processes import lines_said, start_file
from tests.recipes.bert_pretraining.conftest import RECIPE, log, make_options

STEPS = 14


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


def state(output: Path) -> dict[str, torch.Tensor]:
    tensors = load_file(output / f"ckpt_{STEPS}" / "model.safetensors")
    assert tensors
    return tensors


def curve(output: Path) -> list[tuple[float, ...]]:
    names = ("step_loss", "average_loss", "masked_lm_loss", "next_sentence_loss", "grad_norm", "learning_rate")
    rows = [json.loads(line)["data"] for line in (output / "dllogger.json").read_text().splitlines()]
    return [tuple(row[name] for name in names) for row in rows if "step_loss" in row]


def same(first: Path, second: Path) -> None:
    a, b = state(first), state(second)
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []
    assert curve(first) == curve(second)


def dies_in_row(number: int, monkeypatch: pytest.MonkeyPatch, how: Callable[[], None]) -> None:
    """Have a run end when it is about to write the row of a step."""
    import run_pretraining as loop

    report = loop.report

    def dies(run: Any, *others: Any) -> Any:
        if run.step == number:
            how()
        return report(run, *others)

    monkeypatch.setattr(loop, "report", dies)


def killed() -> None:
    raise Killed


@pytest.mark.thorough
def test_a_run_in_eager_that_died_inside_a_file_and_goes_on_equals_one_that_did_not(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = {"dropout": 0.1, "max_steps": STEPS, "engine": "pytorch"}
    whole = run(1, output_dir=tmp_path / "whole", **options)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        dies_in_row(8, patch, killed)  # two steps after a checkpoint, in the middle of a file
        run(1, **options)
    same(run(1, resume_from_checkpoint=True, **options), whole)


def test_after_sigkill_and_ctrl_c_inside_a_file_a_run_ends_as_one_that_was_not_stopped(
    run: Callable[..., Path],
    corpus: Path,
    config_file: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from run_pretraining import pretrain

    options = make_options(corpus, config_file, tmp_path, 1, 0.1, max_steps=STEPS)
    output = options.output_dir
    flags = {
        "input_dir": options.input_dir, "output_dir": output, "config_file": options.config_file, "device": "cpu",
        "max_seq_length": 32, "max_predictions_per_seq": 5, "train_batch_size": 8, "gradient_accumulation_steps": 2,
        "learning_rate": 5e-2, "warmup_proportion": 0.2, "max_steps": STEPS, "num_steps_per_checkpoint": 3,
    }  # fmt: skip
    words = [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    process, said, _ = start_file(RECIPE / "run_pretraining.py", ("--do_train", *words), tmp_path)
    for line in lines_said(process, said):
        if "ckpt_6" in line:
            process.kill()
    assert process.exitcode == -signal.SIGKILL
    position = json.loads((output / "ckpt_6" / "state.json").read_text())["user_dict"]["position"]
    assert position["batch"] > 0

    capsys.readouterr()
    with monkeypatch.context() as patch:
        dies_in_row(10, patch, lambda: signal.raise_signal(signal.SIGINT))
        again = make_options(corpus, config_file, tmp_path, 1, 0.1, max_steps=STEPS, resume_from_checkpoint=True)
        assert not pretrain(again, time.perf_counter())
    assert "resumed after step 6 of phase 1" in capsys.readouterr().out
    assert (output / "ckpt_10").is_dir()
    run(1, dropout=0.1, max_steps=STEPS, resume_from_checkpoint=True)
    same(output, run(1, dropout=0.1, max_steps=STEPS, output_dir=tmp_path / "whole"))


def test_a_torn_checkpoint_is_named_and_the_one_before_it_used(
    run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    output = run(1, engine="pytorch")
    weights = output / "ckpt_6" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    before = log(output)
    run(1, engine="pytorch", resume_from_checkpoint=True)
    said = capsys.readouterr()
    assert "ckpt_6 is left aside" in said.err
    assert "model.safetensors" in said.err
    assert "resumed after step 3" in said.out
    assert log(output) == before  # rows that the torn checkpoint had are replaced, not doubled


def test_a_full_disk_ends_the_run_with_the_checkpoint_before_it(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    save, (soft, hard) = EagerTrainer.save_checkpoint, resource.getrlimit(resource.RLIMIT_FSIZE)

    def fills_up(self: EagerTrainer, folder: Path, user_dict: Any) -> None:
        if folder.name == "ckpt_6":  # no file may grow beyond 20 kB from now on
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        save(self, folder, user_dict)

    monkeypatch.setattr(EagerTrainer, "save_checkpoint", fills_up)
    try:
        with pytest.raises(CheckpointError, match="cannot write the checkpoint .*ckpt_6"):
            run(1, engine="pytorch")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    output = tmp_path / "run"
    assert [path.name for path in output.glob("*ckpt_*")] == ["ckpt_3"]
    monkeypatch.undo()
    run(1, engine="pytorch", resume_from_checkpoint=True)
    assert len(log(output)) == 6


def test_no_more_checkpoints_stay_than_asked_for(run: Callable[..., Path]) -> None:
    output = run(1, engine="pytorch", num_steps_per_checkpoint=1, keep_checkpoints=2)
    assert sorted(path.name for path in output.glob("*ckpt_*")) == ["ckpt_5", "ckpt_6"]
    other = run(1, engine="pytorch", output_dir=output.parent / "none", skip_checkpoint=True)
    assert not list(other.glob("*ckpt_*"))
