"""Two real processes over Gloo: their run is that of one process on the joined batch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.distributed.together import run as start
from tests.recipes.bert_pretraining.conftest import log, make_options
from tests.recipes.bert_pretraining.textbook import textbook


def test_two_processes_draw_the_curve_of_the_joined_batch(
    corpus: Path, config_file: Callable[..., Path], tmp_path: Path
) -> None:
    flags = {"train_batch_size": 4, "gradient_accumulation_steps": 1, "max_steps": 4, "num_steps_per_checkpoint": 2}
    runs = [
        make_options(corpus, config_file, tmp_path / "ontrain", deepspeed_zero_stage=True, **flags),
        make_options(corpus, config_file, tmp_path / "pytorch", engine="pytorch", **flags),
    ]
    start(2, _pretrain, runs)
    expected = textbook(corpus, config_file(**DROPS), (4,), processes=2)
    for options in runs:
        output = options.output_dir
        np.testing.assert_allclose(log(output), expected, rtol=1e-4)
        assert sorted(path.name for path in output.glob("ckpt_*")) == ["ckpt_2", "ckpt_4"]
        assert (output / "phase1_bert.onnx").is_file()
        (end,) = (row for row in _rows(output) if row["step"] == [])
        # of both processes: 4 updates of two times 4 sequences
        assert end["data"]["training_sequences"] == 32
        assert end["data"]["training_tokens"] > 32 * 16
    moments = list((runs[0].output_dir / "ckpt_4").glob("optimizer.rank*"))
    assert len(moments) == 2  # each process wrote its share


DROPS = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _pretrain(runs: list[Any]) -> None:
    from run_pretraining import pretrain

    for options in runs:
        assert pretrain(options, time.perf_counter())


def _rows(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "dllogger.json").read_text().splitlines()]
