"""The script as a user runs it: both engines, resuming, what a run leaves, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_lm
import torch
from harness.eager import EagerTrainer
from lm.twin import Schedule
from plain_loop import CURVE, GOLDEN, LICENSE

ENGINES = ["ontrain", "pytorch"]
SMALL = "n_layer=2,n_embd=32,n_head=4,n_positions=32"
DRY = "resid_pdrop=0,embd_pdrop=0,attn_pdrop=0"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the script in this process; return its exit code, output and errors."""

    def call(*args: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_lm.main([str(word) for word in args])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def small(bpe: Path, texts: Path) -> list[object]:
    """A small model from scratch: 6 updates of 2 · 2 · 16 tokens."""
    return [
        "--do_train", "--train_data_file", texts / "train.txt", "--eval_data_file", texts / "eval.txt",
        "--tokenizer_name", bpe, "--block_size", 16, "--per_gpu_train_batch_size", 2,
        "--gradient_accumulation_steps", 2, "--max_steps", 6, "--learning_rate", 3e-3, "--logging_steps", 1,
        "--sample_length", 8, "--save_steps", 2,
    ]  # fmt: skip


def rows(output: Path, split: str = "train") -> list[dict[str, Any]]:
    logged = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [row for row in logged if row["split"] == split]


def losses(output: Path) -> list[float]:
    return [row["loss"] for row in rows(output)]


def weights(output: Path) -> bytes:
    return (output / "model.safetensors").read_bytes()


# --- training


@pytest.mark.parametrize("engine", ENGINES)
def test_the_curve_is_that_of_a_plain_loop(run: Any, model_folder: Path, tmp_path: Path, engine: str) -> None:
    options = [part for name, value in GOLDEN.items() for part in (f"--{name}", value)]
    code, _, err = run(
        "--engine", engine, "--model_name_or_path", model_folder, "--do_train", "--train_data_file", LICENSE,
        "--output_dir", tmp_path, "--logging_steps", 1, "--save_steps", 0, *options,
    )  # fmt: skip
    assert code == 0, err
    assert losses(tmp_path) == pytest.approx(json.loads(CURVE.read_text()), abs=1e-4)
    assert [row["learning_rate"] for row in rows(tmp_path)][:4] == pytest.approx([0, 1e-3, 2e-3, 3e-3])


def test_both_engines_agree_and_the_files_hold_what_was_trained(run: Any, small: list[object], tmp_path: Path) -> None:
    for engine in ENGINES:
        code, out, err = run(
            *small, "--engine", engine, "--output_dir", tmp_path / engine, "--config_overrides", f"{SMALL},{DRY}",
            "--do_eval", "--do_eval_in_torch", "--evaluate_during_training", "--eval_steps", 3, "--save_total_limit", 2,
        )  # fmt: skip
        assert code == 0, err
        assert "(unigram " in out and "|   greedy: " in out and "|   sampled: " in out
    ours, eager = tmp_path / "ontrain", tmp_path / "pytorch"
    assert losses(ours) == pytest.approx(losses(eager), abs=1e-5)
    mine, theirs = rows(ours, "eval"), rows(eager, "eval")
    assert [row["step"] for row in mine] == [3, 6]
    for key in ("perplexity", "perplexity in PyTorch"):
        assert [row[key] for row in mine] == pytest.approx([row[key] for row in theirs], rel=1e-5)
    assert mine[1]["perplexity"] == pytest.approx(mine[1]["perplexity in PyTorch"], rel=1e-5)
    assert mine[1]["loss"] < mine[0]["loss"]
    assert sorted(path.name for path in ours.glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-6"]
    _compare_with_transformers(ours, small, mine[1])
    results = json.loads((ours / "results.json").read_text())
    assert results["evaluation"]["perplexity"] == mine[1]["perplexity"]
    assert results["command"].startswith("python recipes/gpt2/run_lm.py --do_train ") and results["versions"]["torch"]
    assert 0 < results["seconds an update"] <= results["seconds"] / 6
    assert 0 < results["seconds to capture"] < results["seconds"]
    said = (ours / "eval_results_lm.txt").read_text()
    assert said == f"perplexity = {mine[1]['perplexity']}\n"

    code, out, err = run(
        "--model_name_or_path", ours, "--do_eval", "--eval_data_file", small[4], "--block_size", 16,
        "--output_dir", tmp_path / "again", "--sample_length", 8,
    )  # fmt: skip
    assert code == 0, err
    assert rows(tmp_path / "again", "eval")[0]["perplexity"] == pytest.approx(mine[1]["perplexity"], rel=1e-6)
    assert rows(tmp_path / "again", "eval")[0]["greedy"] == mine[1]["greedy"]


def _compare_with_transformers(output: Path, small: list[object], row: dict[str, Any]) -> None:
    """The folder is a model for transformers; perplexity and greedy text follow from it by other code than ours."""
    from tokenizers.implementations import ByteLevelBPETokenizer
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(output).eval()
    tokenizer = ByteLevelBPETokenizer(str(output / "vocab.json"), str(output / "merges.txt"))
    ids = torch.tensor(tokenizer.encode(Path(str(small[4])).read_text()).ids)
    pieces = [piece for piece in ids.split(16) if len(piece) > 1]
    with torch.no_grad():
        sums = [model(input_ids=piece[None], labels=piece[None]).loss.double() * (len(piece) - 1) for piece in pieces]
        written = model.generate(
            ids[None, :8], attention_mask=torch.ones(1, 8), do_sample=False, max_new_tokens=8, pad_token_id=0
        )
    mean = torch.stack(sums).sum() / sum(len(piece) - 1 for piece in pieces)
    assert row["perplexity"] == pytest.approx(mean.exp().item(), rel=1e-5)
    assert row["greedy"] == tokenizer.decode(written[0].tolist(), skip_special_tokens=False)


def test_the_schedule_is_transformers(small: list[object]) -> None:
    from transformers import get_linear_schedule_with_warmup

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    theirs, ours = get_linear_schedule_with_warmup(optimizer, 4, 11), Schedule(0.3, 4, 11)
    for step in range(13):
        assert ours(step) == pytest.approx(theirs.get_last_lr()[0], abs=1e-15)
        optimizer.step()
        theirs.step()


# --- resuming


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_resumed_run_equals_the_uninterrupted_one_to_the_bit(
    run: Any, small: list[object], tmp_path: Path, engine: str
) -> None:
    options = [*small, "--engine", engine, "--config_overrides", SMALL, "--weight_decay", 0.1, "--warmup_steps", 2]
    whole, copy = tmp_path / "whole", tmp_path / "copy"
    code, _, err = run(*options, "--output_dir", whole)
    assert code == 0, err
    assert len(set(losses(whole))) == 6
    shutil.copytree(whole, copy)
    # The newest checkpoint has a flipped byte: the one before is used, and the damaged one is named.
    damaged = copy / "checkpoint-6" / "model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-5] ^= 1
    damaged.write_bytes(content)
    code, out, err = run(*options, "--output_dir", copy, "--resume_from_checkpoint")
    assert code == 0, err
    assert "resumed after update 4" in out
    assert str(damaged) in err
    assert [row["step"] for row in rows(copy)] == [1, 2, 3, 4, 5, 6]
    assert losses(copy) == losses(whole)
    assert weights(copy) == weights(whole)
    assert (copy / "checkpoint-6" / "optimizer.safetensors").read_bytes() == (
        whole / "checkpoint-6" / "optimizer.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_writes_a_checkpoint_from_which_the_run_goes_on(
    run: Any, small: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: signal.Signals
) -> None:
    options = [*small, "--engine", "pytorch", "--config_overrides", SMALL, "--save_steps", 0]
    assert run(*options, "--output_dir", tmp_path / "whole")[0] == 0
    step = EagerTrainer.train_step

    def pressed(self: EagerTrainer, *batch: torch.Tensor) -> torch.Tensor:
        if (self.updates, self.pending) == (2, 0):
            signal.raise_signal(by)
        return step(self, *batch)

    monkeypatch.setattr(EagerTrainer, "train_step", pressed)
    code, out, err = run(*options, "--output_dir", tmp_path / "halves")
    assert (code, err) == (130, "")
    assert "interrupted after update 3; go on with\n  python recipes/gpt2/run_lm.py --do_train" in out
    assert out.rstrip().endswith("--resume_from_checkpoint")
    assert [path.name for path in (tmp_path / "halves").glob("checkpoint-*")] == ["checkpoint-3"]
    monkeypatch.undo()
    assert run(*options, "--output_dir", tmp_path / "halves", "--resume_from_checkpoint")[0] == 0
    assert losses(tmp_path / "halves") == losses(tmp_path / "whole")
    assert weights(tmp_path / "halves") == weights(tmp_path / "whole")


def test_a_checkpoint_of_another_run_is_refused_with_the_difference(
    run: Any, small: list[object], tmp_path: Path
) -> None:
    options = [*small, "--engine", "pytorch", "--config_overrides", SMALL, "--output_dir", tmp_path]
    code, _, err = run(*options, "--resume_from_checkpoint")
    assert code == 2 and "holds no checkpoint to resume from" in err
    assert run(*options)[0] == 0
    code, _, err = run(*options, "--resume_from_checkpoint", "--seed", 7, "--learning_rate", 1e-3)
    assert code == 2
    assert "seed 42, now 7; learning_rate 0.003, now 0.001" in err
    code, _, err = run(*options)
    assert code == 2 and "is not empty" in err
    assert run(*options, "--overwrite_output_dir", "--save_steps", 0)[0] == 0
    assert not list(tmp_path.glob("checkpoint-*"))  # an older run's are not taken for this one's


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_that_is_not_finite_ends_the_run_and_leaves_the_checkpoint(
    run: Any, small: list[object], tmp_path: Path, engine: str
) -> None:
    code, _, err = run(
        *small, "--engine", engine, "--config_overrides", SMALL, "--output_dir", tmp_path, "--learning_rate", 1e30,
        "--save_steps", 1,
    )  # fmt: skip
    assert code == 1
    assert "at step " in err and "try a lower --learning_rate" in err
    assert (tmp_path / "checkpoint-1" / "model.safetensors").is_file()


# --- the script, and other ways to start it


@pytest.mark.thorough
def test_two_processes_of_the_shell_script_draw_the_curve_of_one_that_takes_their_rows(
    run: Any, small: list[object], texts: Path, bpe: Path, tmp_path: Path
) -> None:
    environment = {
        **os.environ, "TRAIN_FILE": str(texts / "train.txt"), "TEST_FILE": str(texts / "eval.txt"), "MODEL": "",
        "TOKENIZER": str(bpe), "RESULT_DIR": str(tmp_path), "num_gpus": "2", "use_ort": "true",
        "PYTHON": sys.executable, "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    changed = ["--config_overrides", f"{SMALL},{DRY}", *map(str, small[small.index("--block_size") :])]
    process = subprocess.run(
        ["bash", str(run_lm.__file__).replace(".py", ".sh"), *changed],
        env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    output = tmp_path / "output-ort"
    results = json.loads((output / "results.json").read_text())
    assert results["machine"]["processes"] == 2
    assert results["options"]["engine"] == "ontrain" and results["options"]["weight_decay"] == 0.01
    assert np.isfinite(results["evaluation"]["perplexity"])
    code, _, err = run(
        *small, "--engine", "pytorch", "--config_overrides", f"{SMALL},{DRY}", "--output_dir", tmp_path / "alone",
        "--per_gpu_train_batch_size", 4, "--weight_decay", 0.01,
    )  # fmt: skip
    assert code == 0, err
    assert losses(output) == pytest.approx(losses(tmp_path / "alone"), abs=1e-5)


def test_planning_says_what_memory_a_step_takes_and_runs_nothing(run: Any, small: list[object]) -> None:
    said = []
    for batch in (2, 64):
        code, out, err = run(*small, "--config_overrides", SMALL, "--plan_only", "--per_gpu_train_batch_size", batch)
        assert code == 0, err
        assert f"a step of {batch} x 16 tokens: " in out
        assert "update " not in out
        said.append(float(re.search(r"moments, ([\d.]+) GB", out)[1]))
    assert said[1] > said[0]


# --- what is refused


def test_every_option_at_fault_is_named_in_an_error_without_a_traceback(
    run: Any, small: list[object], tmp_path: Path, texts: Path
) -> None:
    def refused(said: str, *changes: object, base: list[object] | None = None) -> None:
        options = small if base is None else base
        code, _, err = run(*options, "--output_dir", tmp_path / "out", "--config_overrides", SMALL, *changes)
        assert code == 2, (said, err)
        assert err.startswith("error: ") and said in err, (said, err)
        assert "Traceback" not in err

    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "out").mkdir()
    refused("there is no file 'nowhere.txt'", "--train_data_file", "nowhere.txt")
    refused("empty.txt is empty", "--train_data_file", tmp_path / "empty.txt")
    refused("latin.txt is no UTF-8 text", "--train_data_file", tmp_path / "latin.txt")
    refused("--block_size is 64, the model has 32 positions", "--block_size", 64)
    refused("--block_size is 1", "--block_size", 1)
    refused("lower --gradient_accumulation_steps", "--gradient_accumulation_steps", 4000)
    refused("--gradient_accumulation_steps is 0", "--gradient_accumulation_steps", 0)
    refused("--learning_rate is nan", "--learning_rate", "nan")
    refused("--warmup_steps is 6, the run has 6 updates", "--warmup_steps", 6)
    refused("nearest: '--block_size'", "--blok_size", 8)
    refused("invalid int value: 'many'", "--max_steps", "many")
    refused("contradict each other", "--use_ort", "false", "--engine", "ontrain")
    refused("--engine is 'jax'", "--engine", "jax")
    refused("this recipe trains gpt2", "--model_type", "bert")
    refused("vocabulary's folder", "--tokenizer_name", tmp_path / "out")
    refused("is two files", "--vocab_file", tmp_path / "out")
    refused("a GPT2Config has no 'n_layers'", "--config_overrides", "n_layers=3")
    refused("cannot be shared by 5 heads", "--config_overrides", "n_embd=32,n_head=5")
    refused("are too many", "--do_eval", "--sample_length", 60)
    refused("--prompt is empty", "--do_eval", "--prompt", "")
    refused("--fp16 is not for the eager twin", "--engine", "pytorch", "--fp16")
    refused("there is nothing to do", base=[word for word in small if word != "--do_train"])
    refused("there is no text to evaluate on", base=["--do_eval"])
    (tmp_path / "file").touch()
    code, _, err = run(*small, "--output_dir", tmp_path / "file" / "run")
    assert code == 2 and "cannot be written" in err


def test_a_model_with_another_vocabulary_is_refused(
    run: Any, bpe: Path, texts: Path, model_folder: Path, tmp_path: Path
) -> None:
    code, _, err = run(
        "--do_eval", "--eval_data_file", texts / "eval.txt", "--model_name_or_path", model_folder, "--tokenizer_name",
        bpe, "--output_dir", tmp_path,
    )  # fmt: skip
    assert code == 2
    assert "the model has 257 tokens, the vocabulary 600" in err
