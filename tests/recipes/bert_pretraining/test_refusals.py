"""What cannot work is said in one message, before or as soon as it can be known, and nothing is lost by it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.files import DataError

from ontrain.errors import OptionError
from tests.recipes.bert_pretraining.conftest import RECIPE, log


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"do_train": False}, "--do_train is missing"),
        ({"train_batch_size": 10, "gradient_accumulation_steps": 4}, "10 is not divisible by .* 4: .* nearest: 5"),
        ({"max_steps": 2.5}, "--max_steps 2.5 is no whole number"),
        ({"warmup_proportion": 1.0}, r"--warmup_proportion 1.0 is not in \[0, 1\)"),
        ({"max_predictions_per_seq": 32}, "--max_predictions_per_seq 32 does not fit --max_seq_length 32"),
        ({"fp16": True, "bf16": True}, "--fp16 and --bf16 exclude each other"),
        ({"loss_scale": 128.0}, "--loss_scale is for --fp16"),
        ({"resume_step": 3}, "--resume_step 3 needs --resume_from_checkpoint"),
        ({"log_freq": 0.0}, "--log_freq 0.0 is not between"),
        ({"input_dir": Path("nowhere")}, "nowhere: no such folder"),
        ({"max_seq_length": 64}, "holds sequences of 32 tokens, but --max_seq_length is 64"),
        ({"max_seq_length": 65}, "65 is longer than the 64 positions of the model"),
        ({"train_batch_size": 20000}, "holds [0-9,]+ instances, less than a batch of 10000"),
        ({"config_file": Path("none.json")}, "--config_file none.json cannot be read"),
        ({"config_file": None, "bert_model": "bert-huge"}, "--bert_model bert-huge is none of bert-base-uncased"),
        ({"phase2": True}, "--phase2 goes on from phase 1"),
        ({"phase2": True, "resume_from_checkpoint": True}, "there is no ckpt_7038 of phase 1"),
        ({"resume_from_checkpoint": True}, "there is no ckpt_N in .*: leave the flag out"),
        ({"init_checkpoint": Path("weights.pt")}, "weights.pt: no such file or folder with weights"),
        ({"engine": "pytorch", "gpu_memory_limit_gb": 4.0}, "allocator has no limit on a CPU"),
        ({"engine": "pytorch", "deepspeed_zero_stage": True}, "moments of eager PyTorch are not shared out"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags: dict[str, Any], said: str, run: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=said):
        run(1, **flags)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hidden_sizes": 3}, "BERT has no setting 'hidden_sizes'; nearest: 'hidden_size'"),
        ({"num_attention_heads": 5}, "hidden_size 32 is not divisible by num_attention_heads 5"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two'"),
        ({"vocab_size": 100}, "input_ids holds .*, but it may hold 0 to 99 with this vocabulary"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    changed: dict[str, Any], said: str, run: Callable[..., Path], config_file: Callable[..., Path]
) -> None:
    with pytest.raises(DataError, match=said):
        run(1, config_file=config_file(**changed))


def test_a_file_that_is_damaged_later_leaves_the_work_before_it(
    run: Callable[..., Path], corpus: Path, tmp_path: Path
) -> None:
    from corpus.hdf5 import shape
    from dataset import PretrainingData

    data = tmp_path / "data"
    shutil.copytree(corpus / "phase1", data)
    reader = PretrainingData(data, batch_size=32, seed=42)
    first, second = (reader.files[i] for i in (reader._members(0, 0)[0], reader._members(0, 1)[0]))
    whole = second.read_bytes()
    torn = bytearray(whole)
    torn[len(torn) // 2 : len(torn) // 2 + 400] = bytes(400)
    second.write_bytes(torn)
    updates = shape(first)[0] // 64
    options = {
        "engine": "pytorch", "input_dir": data, "train_batch_size": 64, "max_steps": updates + 3,
        "num_steps_per_checkpoint": 10**6, "log_freq": 1000.0,
    }  # fmt: skip
    with pytest.raises(DataError, match=rf"{re.escape(second.name)} (is no HDF5 file, or is damaged|holds|:)"):
        run(1, **options)
    output = tmp_path / "run"
    assert [path.name for path in output.glob("ckpt_*")] == [f"ckpt_{updates}"]
    second.write_bytes(whole)
    run(1, resume_from_checkpoint=True, **options)
    assert max(log(output, "checkpoint_step")) == updates + 3


def test_a_checkpoint_of_another_run_is_refused(run: Callable[..., Path], config_file: Callable[..., Path]) -> None:
    output = run(1, engine="pytorch", max_steps=3, gradient_accumulation_steps=1)
    with pytest.raises(DataError, match="holds ckpt_3: give --resume_from_checkpoint"):
        run(1, engine="pytorch")
    for flags, said in (
        ({"seed": 7}, "another seed: 42, this run has 7"),
        ({"engine": "ontrain"}, "another engine: 'pytorch', this run has 'ontrain'"),
        ({"config_file": config_file(num_attention_heads=4)}, "another heads: 2, this run has 4"),
        ({"config_file": config_file(intermediate_size=48)}, "intermediate_size was 64 and is 48"),
        ({"resume_step": 2}, "there is no ckpt_2 in .*, but ckpt_3"),
        ({"phase2": True, "phase1_end_step": 6}, "ckpt_3 is of its step 3, and --phase1_end_step says 6"),
    ):
        with pytest.raises(DataError, match=said):
            run(1, **{"engine": "pytorch", "resume_from_checkpoint": True, **flags})
    assert [path.name for path in output.glob("ckpt_*")] == ["ckpt_3"]


def test_a_step_that_needs_more_memory_than_allowed_is_refused(run: Callable[..., Path]) -> None:
    with pytest.raises(OptionError, match=r"needs [0-9,]+ bytes, --gpu_memory_limit_gb allows 107,374") as refused:
        run(1, gpu_memory_limit_gb=0.0001)
    assert "way out: raise --gradient_accumulation_steps" in str(refused.value)
    assert "device.mem_limit" not in str(refused.value)


def test_the_shell_sees_one_line_and_an_exit_code(tmp_path: Path) -> None:
    command = [sys.executable, str(RECIPE / "run_pretraining.py"), "--input_dir", "x", "--output_dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: nothing to do: --do_train is missing\n"
