"""run_pretraining.sh: the commands that it gives, with python and torchrun replaced by what writes them down."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.recipes.bert_pretraining.conftest import RECIPE

Started = tuple[str, dict[str, str]]


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., tuple[int, str, list[Started]]]:
    """A function that runs the script and returns its exit code, errors and commands with their flags."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("python", "torchrun"):
        program = programs / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/commands\nexit ${{FAIL:-0}}\n')
        program.chmod(0o755)

    def start(*arguments: str, **environment: str) -> tuple[int, str, list[Started]]:
        (tmp_path / "commands").write_text("")
        done = subprocess.run(
            ["bash", str(RECIPE / "run_pretraining.sh"), *arguments], capture_output=True, text=True, check=False,
            env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "CHECKPOINTS_DIR": str(tmp_path / "ckpts"),
                 **environment},
        )  # fmt: skip
        return (
            done.returncode,
            done.stderr,
            [_parsed(line) for line in (tmp_path / "commands").read_text().splitlines()],
        )

    return start


def _parsed(line: str) -> Started:
    program, _, flags = line.partition("run_pretraining.py ")
    words = flags.split()
    return program, {
        word: words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("--") else ""
        for i, word in enumerate(words)
        if word.startswith("--")
    }


def positions(**values: str) -> list[str]:
    """Positional parameters, by number: p4="1"."""
    return [values.get(f"p{i}", "") for i in range(1, 28)]


def test_both_phases_with_the_published_numbers(script: Callable[..., tuple[int, str, list[Started]]]) -> None:
    code, said, [(program, first), (_, second)] = script(*positions(p9="false"))
    assert (code, said) == (0, "")
    assert program.startswith("torchrun --standalone --nproc_per_node 8")
    assert first["--max_steps"] == "7038"
    assert float(first["--learning_rate"]) == 6e-3
    assert first["--warmup_proportion"] == "0.2843"
    assert (first["--train_batch_size"], first["--gradient_accumulation_steps"]) == ("8192", "64")
    assert "--phase2" not in first
    assert (second["--max_steps"], second["--warmup_proportion"]) == ("1563", "0.128")
    assert float(second["--learning_rate"]) == 4e-3
    assert (second["--train_batch_size"], second["--gradient_accumulation_steps"]) == ("4096", "256")
    assert {"--phase2", "--resume_from_checkpoint"} <= set(second)
    assert second["--phase1_end_step"] == "7038"
    for flags, length, predictions in ((first, "128", "20"), (second, "512", "80")):
        assert (flags["--max_seq_length"], flags["--max_predictions_per_seq"]) == (length, predictions)
        assert {"--fp16", "--do_train", "--allreduce_post_accumulation"} <= set(flags)
        assert flags["--seed"] == "42"
        assert "--gpu_memory_limit_gb" not in flags


@pytest.mark.parametrize(
    ("gpus", "memory", "phase1", "phase2"),
    [
        # upstream's recommendations for V100 cards of 32 and 16 GB
        ("8", "32", "8192/64", "4096/256"),
        ("16", "32", "4096/32", "2048/128"),
        ("32", "32", "2048/16", "1024/64"),
        ("64", "32", "1024/8", "512/32"),
        ("4", "16", "16320/340", "8192/1024"),
        ("8", "16", "8160/170", "4096/512"),
        ("16", "16", "4080/85", "2048/256"),
        ("32", "16", "2016/42", "1024/128"),
        ("64", "16", "1008/21", "512/64"),
    ],
)
def test_batches_follow_gpus_and_memory(
    gpus: str, memory: str, phase1: str, phase2: str, script: Callable[..., tuple[int, str, list[Started]]]
) -> None:
    _, _, commands = script(*positions(p4=gpus, p26=memory, p9="false"))
    sizes = [f"{flags['--train_batch_size']}/{flags['--gradient_accumulation_steps']}" for _, flags in commands]
    assert sizes == [phase1, phase2]
    assert [flags["--gpu_memory_limit_gb"] for _, flags in commands] == [memory, memory]


def test_a_failing_phase_ends_the_script_and_a_rerun_goes_on_where_it_was(
    script: Callable[..., tuple[int, str, list[Started]]], tmp_path: Path
) -> None:
    arguments = positions(p4="1", p6="100", p8="true", p9="false")
    code, _, commands = script(*arguments, FAIL="2")
    assert code == 2
    assert [program.split()[0] for program, _ in commands] == ["python"]
    assert "--resume_from_checkpoint" not in commands[0][1]
    folder = tmp_path / "ckpts"
    (folder / "ckpt_40").mkdir()
    _, _, [(_, first), (_, second)] = script(*arguments)
    assert "--resume_from_checkpoint" in first
    assert "--phase2" in second
    (folder / "ckpt_100").mkdir()
    (folder / "phase1_bert.onnx").touch()
    assert ["--phase2" in flags for _, flags in script(*arguments)[2]] == [True]
    (folder / "ckpt_120").mkdir()
    assert ["--phase2" in flags for _, flags in script(*arguments)[2]] == [True]
    code, said, commands = script(*positions(p4="1", p9="false"))
    assert (code, commands) == (2, [])
    assert "holds ckpt_120: resume_training (8) true goes on" in said


def test_flags_behind_two_dashes_go_to_both_phases(script: Callable[..., tuple[int, str, list[Started]]]) -> None:
    options = ["--", "--engine", "pytorch"]
    _, _, commands = script(*positions(p3="fp32", p4="1", p9="false", p27="true"), *options)
    for _, flags in commands:
        assert flags["--engine"] == "pytorch"
        assert "--deepspeed_zero_stage" in flags
        assert "--fp16" not in flags
    assert script(*positions(p3="fp8"))[:2] == (2, "error: precision (3) is fp8: fp16, bf16 or fp32\n")
