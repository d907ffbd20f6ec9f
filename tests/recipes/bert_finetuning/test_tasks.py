"""Every task of GLUE from its archive's files to its own scores."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import run_glue
from glue import TASKS
from harness.finetuning.flags import Engine
from numpy.typing import NDArray

from tests.recipes.bert_finetuning.archives import HEADERS, write_archive

pytestmark = pytest.mark.sampled(2)

ONE = {"CoLA": {"mcc"}, "MRPC": {"acc", "f1", "acc_and_f1"}, "STS-B": {"pearson", "spearmanr", "corr"}}
SCORES = {task.lower(): {task.lower(): ONE.get(task, {"acc"})} for task in HEADERS}
SCORES["qqp"] = {"qqp": ONE["MRPC"]}
SCORES["mnli"] = {"mnli": {"mnli/acc"}, "mnli-mm": {"mnli-mm/acc"}}
"""Names of the scores, by task and set."""


def predicted(path: Path, labels: tuple[str, ...]) -> list[NDArray[np.float64]]:
    """Of each engine, and the labels, out of predictions_{set}.tsv."""
    header, *rows = (line.split("\t") for line in path.read_text().splitlines())
    assert header == ["index", "pytorch", "onnxruntime", "label"]
    assert [row[0] for row in rows] == [str(number) for number in range(22)]
    return [
        np.array([labels.index(row[n]) if labels else np.float32(row[n]) for row in rows], float) for n in (1, 2, 3)
    ]


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 for the least; equal ones have the mean of theirs."""
    return np.array([(values < value).sum() + ((values == value).sum() + 1) / 2 for value in values])


def correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """0 where the model says the same of all; of two classes this is Matthews'."""
    return float(np.corrcoef(x, y)[0, 1]) if np.ptp(x) else 0.0


def expected(name: str, said: NDArray[np.float64], label: NDArray[np.float64]) -> float:
    """A score, by formulas other than the recipe's."""
    accuracy = float((said == label).mean())
    hits = int(((said == 1) & (label == 1)).sum())
    precision, recall = hits / max(1, int((said == 1).sum())), hits / int((label == 1).sum())
    f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
    linear, ranked = correlation(said, label), correlation(ranks(said), ranks(label))
    both = {"acc_and_f1": (accuracy + f1) / 2, "corr": (linear + ranked) / 2}
    return {"f1": f1, "mcc": linear, "pearson": linear, "spearmanr": ranked, **both}.get(name, accuracy)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", HEADERS)
def test_a_task_goes_from_its_archives_files_to_its_scores(name: str, model: Path, tmp_path: Path) -> None:
    write_archive(tmp_path / name, name)
    flags = {"learning_rate": 5e-3, "max_steps": 6, "dropout": 0.0, "engine": Engine.pytorch, "max_seq_length": 64}
    names = {"task_name": name, "data_dir": tmp_path / name, "model_name_or_path": str(model)}
    run_glue.main(**names, output_dir=tmp_path / "run", do_train=True, do_eval=True, **flags)

    task = TASKS[name.lower()]
    results = json.loads((tmp_path / "run" / "eval_results.json").read_text())
    assert results["training"]["examples"] == 22
    for held, scores in SCORES[task.name].items():
        *engines, label = predicted(tmp_path / "run" / f"predictions_{held}.tsv", task.labels)
        for engine, said in zip(("PyTorch", "onnxruntime"), engines, strict=True):
            assert set(results[held][engine]) == scores
            for score, value in results[held][engine].items():
                assert math.isfinite(value)
                assert value == pytest.approx(expected(score, said, label), abs=1e-9)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert list(config["id2label"].values()) == list(task.labels or ("score",))
