"""Fine-tune BERT on a task of GLUE, and score its predictions in two engines.

    $ python run_glue.py --task_name CoLA --data_dir ~/glue/CoLA --model_name_or_path ~/bert-base-uncased \\
          --do_train --do_eval --output_dir runs/cola
    $ python run_glue.py --task_name CoLA --data_dir ~/glue/CoLA --model_name_or_path runs/cola --do_eval \\
          --output_dir runs/cola-again                      # score a trained model
    $ python run_glue.py --task_name MRPC --data_dir ~/glue/MRPC --model_name_or_path ~/bert-base-uncased \\
          --do_train --engine pytorch --output_dir runs/eager

Tasks: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI. --data_dir holds train.tsv and dev.tsv as the benchmark's
archives have them (MNLI: dev_matched.tsv and dev_mismatched.tsv; CoLA without header). The flags are those of Hugging
Face's run_glue.py. Training is a plain PyTorch loop around `ORTModule(model)` (harness/finetuning/training.py, with
run_squad.py's); `--engine pytorch` runs the same loop without it. Predictions come from logits of PyTorch and of the
exported model.onnx in onnxruntime, and both are scored. On several GPUs: `torchrun --nproc_per_node 8 run_glue.py …`,
or mpirun, or srun.

What a run leaves in --output_dir:

    config.json, model.safetensors, vocab.txt   the model; give the folder as --model_name_or_path to evaluate alone
    model.onnx                                  inputs input_ids, attention_mask, token_type_ids; output logits
    predictions_{set}.tsv                       index, the prediction of each engine, the label
    eval_results.json                           scores, agreement of the engines, command, versions
    train_log.jsonl                             a row an update: step, loss, learning_rate, examples
    checkpoint/, checkpoint~1/                  what the same command goes on from, whatever stopped it

Exit codes: 0 done; 1 the loss became NaN or infinite, or the two engines' logits differ by more than 1e-3; 2 an option,
the data, the model or the disk is at fault; 130 Ctrl-C or SIGTERM: the update was finished and a checkpoint written.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from harness.needs import need

need("ontrain", "torch", "numpy", "typer", "rich", "tokenizers", "transformers", "sklearn")

from dataclasses import dataclass
from typing import Annotated, Any

from harness.files import DataError, written
from harness.finetuning.flags import Flags
from harness.options import command, execute, flag, parse


@dataclass(frozen=True, kw_only=True)
class Options(Flags):
    """The flags; the top of run_glue.py is their manual."""

    task_name: Annotated[str, flag("CoLA, SST-2, MRPC, STS-B, QQP, MNLI, …")]
    data_dir: Annotated[Path, flag("Folder of train.tsv and dev.tsv.", missing="no such folder")]
    max_seq_length: Annotated[int, flag("Tokens; more are cut off.", min=5)] = 128
    max_train_samples: Annotated[int | None, flag("Train on so many only, drawn by the seed.", min=1)] = None


if __name__ == "__main__":
    OPTIONS = parse(Options)  # before torch, for which --help need not wait

import numpy as np
from glue import TASKS, Task, encode, read_sentences, score
from harness.finetuning.evaluation import logits_of_both, write_onnx
from harness.finetuning.examples import Examples
from harness.finetuning.run import Run
from numpy.typing import NDArray
from transformers import BertForSequenceClassification


def fine_tune(flags: Options) -> None:
    """Train and evaluate as the flags say; exit with 1 where the two engines' logits differ by more than 1e-3."""
    task, run = task_of(flags.task_name), Run.begin(flags, flags.max_seq_length)
    folder = run.folder

    # Data: sentences, or pairs of them, each with a label.
    def examples_of(file: str) -> Examples:
        sentences, bad = read_sentences(flags.data_dir / file, task, skip_bad=flags.skip_bad)
        left_out = f", {bad:,} bad ones left out" if bad else ""
        run.say(f"{file}: {len(sentences.labels):,} examples{left_out}")
        inputs = encode(sentences, folder.vocab_file, lower=folder.lower, max_seq_length=flags.max_seq_length)
        return Examples(inputs, {"labels": np.asarray(sentences.labels, np.int64 if task.labels else np.float32)})

    training = examples_of("train.tsv") if flags.do_train else None
    if training and flags.max_train_samples and flags.max_train_samples < len(training):
        training = training.drawn(flags.max_train_samples, flags.seed)
        run.say(f"of these, {flags.max_train_samples:,} are drawn")
    predicting = {name: examples_of(file) for name, file in task.files().items()} if flags.do_eval else {}

    # Model and training: the loss, cross entropy or for STS-B the mean square, is the model's own.
    model = folder.load(flags, BertForSequenceClassification, run.console, **head(task))
    if training:
        run.train(model, training)
    if run.team.first and predicting:
        write_onnx(model, ["logits"], run.onnx)
        run.finish(float(np.max([evaluate(run, flags, model, name, some) for name, some in predicting.items()])))


def evaluate(run: Run, flags: Options, model: BertForSequenceClassification, name: str, examples: Examples) -> float:
    """Note the scores of two engines' predictions of a set, and write these; return how far the logits are apart."""
    task, labels = task_of(flags.task_name), examples.targets["labels"]
    columns, size = {"logits": max(1, len(task.labels))}, flags.per_gpu_eval_batch_size
    logits, apart = logits_of_both(model, run.onnx, examples, columns, size, run.team.device)
    said = {engine: predictions(values, task) for engine, (values,) in logits.items()}
    scores = {engine: score(name, values, labels) for engine, values in said.items()}
    for engine, values in scores.items():
        run.say(f"{name}, {engine}: {', '.join(f'{what} {value:.4f}' for what, value in values.items())}")
    agreement = {"examples": len(labels), "logits_within": apart}
    if task.labels:
        equal = agreement["equal_predictions"] = int((said["PyTorch"] == said["onnxruntime"]).sum())
        run.say(f"engines: {equal:,} of {len(labels):,} predictions equal, logits within {apart:.1e}")
    else:
        run.say(f"engines: numbers within {apart:.1e}")
    run.results[name] = {**scores, "agreement": agreement}
    write_predictions(flags.output_dir / f"predictions_{name}.tsv", task, said["PyTorch"], said["onnxruntime"], labels)
    return apart


def task_of(name: str) -> Task:
    """SST-2, sst-2 and sst2 are one."""
    for task in TASKS.values():
        if name.lower().replace("-", "") == task.name.replace("-", ""):
            return task
    raise DataError(f"--task_name {name} is none of {', '.join(TASKS)}")


def head(task: Task) -> dict[str, Any]:
    """Return what the task changes in the model's configuration."""
    names = task.labels or ("score",)
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "single_label_classification" if task.labels else "regression",
    }


def predictions(logits: NDArray[np.float32], task: Task) -> NDArray[Any]:
    return logits.argmax(axis=1) if task.labels else logits[:, 0]


def write_predictions(path: Path, task: Task, *columns: NDArray[Any]) -> None:
    """Write a row an example: its index, the prediction of each engine, the label."""

    def name(value: float) -> str:
        return task.labels[int(value)] if task.labels else f"{value:.9g}"  # all digits of a float32

    with written(path) as file:
        file.write(b"index\tpytorch\tonnxruntime\tlabel\n")
        for row, values in enumerate(zip(*columns, strict=True)):
            file.write("\t".join((str(row), *map(name, values))).encode() + b"\n")


main = command(Options, fine_tune)

if __name__ == "__main__":
    execute(fine_tune, OPTIONS)
