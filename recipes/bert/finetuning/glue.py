"""Fine-tuning on a task of GLUE, and its predictions in two engines: what run_glue.py runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import typer
from corpus.workspace import DataError, written
from numpy.typing import NDArray
from reading.sentences import TASKS, Sentences, Task, encode, read_sentences
from scoring.glue import score
from transformers import BertForSequenceClassification

from finetuning import options
from finetuning.evaluation import TOLERANCE, distance, export, logits_of_onnx, logits_of_torch
from finetuning.examples import Examples
from finetuning.processes import Team

__all__ = ["fine_tune"]


def fine_tune(
    flags: options.Flags, task_name: str, data_dir: Path, max_seq_length: int, max_train_samples: int | None
) -> None:
    """Train and evaluate as the flags of run_glue.py say.

    Raises:
        DataError: a flag, the data or the model is at fault.
        typer.Exit: with 1, the two engines' logits differ by more than 1e-3.
    """
    task, team = _task(task_name), Team.join(flags.no_cuda)
    settings, output = flags.settings(team.size), flags.output_dir
    if team.first:
        options.writable(output)
    console = options.speaker(quiet=not team.first)
    folder = flags.folder(max_seq_length)

    def examples_of(file: str) -> Examples:
        sentences, bad = read_sentences(data_dir / file, task, skip_bad=flags.skip_bad)
        left_out = f", {bad:,} bad ones left out" if bad else ""
        console.print(f"{file}: {len(sentences.labels):,} examples{left_out}")
        inputs = encode(sentences, folder.vocab_file, lower=folder.lower, max_seq_length=max_seq_length)
        return Examples(inputs, {"labels": _labels(sentences, task)})

    training = examples_of("train.tsv") if flags.do_train else None
    if training and max_train_samples and max_train_samples < len(training):
        training = training.drawn(max_train_samples, flags.seed)
        console.print(f"of these, {max_train_samples:,} are drawn")
    predicting = {name: examples_of(file) for name, file in task.files().items()} if flags.do_eval else {}
    model = flags.load(folder, BertForSequenceClassification, console, **_head(task))
    results: dict[str, Any] = {}
    if training:
        results["training"] = flags.train(model, folder, training, settings, console, team)
    if not (team.first and predicting):
        return

    size = flags.per_gpu_eval_batch_size
    in_torch = {
        name: logits_of_torch(model, one, _columns(task), size, team.device) for name, one in predicting.items()
    }
    export(model, ["logits"], output / "model.onnx")
    agree = True
    for name, examples in predicting.items():
        in_onnx = logits_of_onnx(output / "model.onnx", examples, _columns(task), size)
        said = {"PyTorch": _predictions(in_torch[name][0], task), "onnxruntime": _predictions(in_onnx[0], task)}
        labels = examples.targets["labels"]
        scores = {key: score(name, values, labels) for key, values in said.items()}
        for key, values in scores.items():
            console.print(f"{name}, {key}: {', '.join(f'{what} {value:.4f}' for what, value in values.items())}")
        apart = distance(in_torch[name], in_onnx)
        equal = int((said["PyTorch"] == said["onnxruntime"]).sum())
        results[name] = {**scores, "agreement": {"examples": len(labels), "logits_within": apart}}
        if task.labels:
            results[name]["agreement"]["equal_predictions"] = equal
            console.print(f"engines: {equal:,} of {len(labels):,} predictions equal, logits within {apart:.1e}")
        else:
            console.print(f"engines: numbers within {apart:.1e}")
        _write(output / f"predictions_{name}.tsv", task, said["PyTorch"], said["onnxruntime"], labels)
        agree &= apart <= TOLERANCE
    options.epilogue(output, results)
    if not agree:
        raise typer.Exit(1)


def _task(name: str) -> Task:
    """SST-2, sst-2 and sst2 are one."""
    for task in TASKS.values():
        if name.lower().replace("-", "") == task.name.replace("-", ""):
            return task
    raise DataError(f"--task_name {name} is none of {', '.join(TASKS)}")


def _labels(sentences: Sentences, task: Task) -> NDArray[Any]:
    return np.asarray(sentences.labels, np.int64 if task.labels else np.float32)


def _columns(task: Task) -> dict[str, int]:
    return {"logits": max(1, len(task.labels))}


def _head(task: Task) -> dict[str, Any]:
    """What the task changes in the model's configuration."""
    return {
        "id2label": dict(enumerate(task.labels or ("score",))),
        "label2id": {name: number for number, name in enumerate(task.labels or ("score",))},
        "problem_type": "single_label_classification" if task.labels else "regression",
    }


def _predictions(logits: NDArray[np.float32], task: Task) -> NDArray[Any]:
    return logits.argmax(axis=1) if task.labels else logits[:, 0]


def _write(path: Path, task: Task, in_torch: NDArray[Any], in_onnx: NDArray[Any], labels: NDArray[Any]) -> None:
    def name(value: float) -> str:
        return task.labels[int(value)] if task.labels else f"{value:.9g}"  # all digits of a float32

    with written(path) as file:
        file.write(b"index\tpytorch\tonnxruntime\tlabel\n")
        for row, values in enumerate(zip(in_torch, in_onnx, labels, strict=True)):
            file.write("\t".join((str(row), *map(name, values))).encode() + b"\n")
