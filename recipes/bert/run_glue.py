"""Fine-tune BERT on a task of GLUE, and score its predictions in two engines.

    $ python run_glue.py --task_name CoLA --data_dir ~/glue/CoLA --model_name_or_path ~/bert-base-uncased \\
          --do_train --do_eval --output_dir runs/cola

Tasks: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI. --data_dir holds train.tsv and dev.tsv as the benchmark's
archives have them (MNLI: dev_matched.tsv and dev_mismatched.tsv; CoLA without header). The flags are those of Hugging
Face's run_glue.py. Training is a plain PyTorch loop around `ORTModule(model)` (finetuning/training.py); `--engine
pytorch` runs the same loop without it. Predictions come twice, from logits of PyTorch and of the exported model.onnx in
onnxruntime, and both are scored: Matthews' correlation for CoLA, Pearson's and Spearman's for STS-B, accuracy and F1
for MRPC and QQP, accuracy for the others.

Weights out of a pre-training of your own: `--init_checkpoint FOLDER`, which convert_checkpoint.py makes;
`--random_init` takes none, to compare with.

What a run leaves in --output_dir:

    config.json, model.safetensors, vocab.txt   the model; give the folder as --model_name_or_path to evaluate alone
    model.onnx                                  inputs input_ids, attention_mask, token_type_ids; output logits
    predictions_{set}.tsv                       index, the prediction of each engine, the label
    eval_results.json                           scores, agreement of the engines, command, versions
    train_log.jsonl                             a row an update: step, loss, learning_rate, examples
    checkpoint/, checkpoint~1/                  what the same command goes on from, whatever stopped it

Exit codes: 0 done; 1 the loss became NaN or infinite, or the two engines' logits differ by more than 1e-3; 2 an option,
the data, the model or the disk is at fault, said in one message; 130 interrupted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from corpus.workspace import DataError, written
from finetuning import options
from finetuning.evaluation import TOLERANCE, distance, export, logits_of_onnx, logits_of_torch
from finetuning.examples import Examples
from finetuning.models import ModelFolder, parameters, save_model
from finetuning.settings import Engine, Settings
from finetuning.training import Habits, train
from numpy.typing import NDArray
from reading.sentences import TASKS, Sentences, Task, encode, read_sentences
from scoring.glue import score
from transformers import BertForSequenceClassification


def main(
    task_name: Annotated[str, typer.Option("--task_name", help="CoLA, SST-2, MRPC, STS-B, QQP, MNLI, …")],
    data_dir: Annotated[Path, typer.Option("--data_dir", help="Folder of train.tsv and dev.tsv.")],
    model_name_or_path: options.ModelOption,
    output_dir: options.OutputOption,
    do_train: options.TrainOption = False,
    do_eval: options.EvalOption = False,
    max_seq_length: Annotated[int, typer.Option("--max_seq_length", min=5, help="Tokens; more are cut off.")] = 128,
    max_train_samples: Annotated[
        int | None, typer.Option("--max_train_samples", min=1, help="Train on so many only, drawn by the seed.")
    ] = None,
    init_checkpoint: options.InitOption = None,
    vocab_file: options.VocabOption = None,
    do_lower_case: options.LowerOption = None,
    random_init: options.RandomOption = False,
    engine: options.EngineOption = Engine.ontrain,
    fp16: Annotated[bool, typer.Option("--fp16", help="Products in float16, the loss scaled.")] = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="Products in bfloat16.")] = False,
    per_gpu_train_batch_size: options.BatchOption = 8,
    per_gpu_eval_batch_size: options.EvalBatchOption = 8,
    gradient_accumulation_steps: options.AccumulationOption = 1,
    learning_rate: options.RateOption = 5e-5,
    weight_decay: options.DecayOption = 0.0,
    adam_epsilon: options.EpsilonOption = 1e-8,
    max_grad_norm: options.NormOption = 1.0,
    num_train_epochs: options.EpochsOption = 3.0,
    max_steps: options.MaxStepsOption = -1,
    warmup_proportion: options.WarmupOption = 0.1,
    dropout: options.DropoutOption = None,
    seed: options.SeedOption = 42,
    group_by_length: options.GroupOption = False,
    pad_to_max_length: options.PadOption = False,
    no_cuda: options.NoCudaOption = False,
    save_steps: options.SaveOption = 500,
    save_total_limit: options.KeepOption = 2,
    logging_steps: options.LoggingOption = 50,
    overwrite_output_dir: options.OverwriteOption = False,
    skip_bad: options.SkipBadOption = False,
) -> None:
    """Fine-tune BERT on a task of GLUE; the top of run_glue.py is the manual."""
    with options.ended():
        options.check_work(do_train, do_eval)
        task = _task(task_name)
        settings = Settings(
            engine=engine,
            precision=options.choose_precision(fp16, bf16),
            per_gpu_train_batch_size=per_gpu_train_batch_size,
            gradient_accumulation_steps=gradient_accumulation_steps,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            adam_epsilon=adam_epsilon,
            max_grad_norm=max_grad_norm,
            num_train_epochs=num_train_epochs,
            max_steps=max_steps,
            warmup_proportion=warmup_proportion,
            seed=seed,
            group_by_length=group_by_length,
            pad_to_max_length=pad_to_max_length,
        )
        habits = Habits(save_steps, save_total_limit, logging_steps, overwrite_output_dir)
        options.writable(output_dir)
        console, device = options.speaker(), options.choose_device(no_cuda)
        folder = ModelFolder.open(
            model_name_or_path,
            init_checkpoint=init_checkpoint,
            vocab_file=vocab_file,
            lower=None if do_lower_case is None else do_lower_case > 0,
            random_init=random_init,
        )
        folder.check_length(max_seq_length)

        def examples_of(file: str) -> Examples:
            sentences, bad = read_sentences(data_dir / file, task, skip_bad=skip_bad)
            left_out = f", {bad:,} bad ones left out" if bad else ""
            console.print(f"{file}: {len(sentences.labels):,} examples{left_out}")
            inputs = encode(sentences, folder.vocab_file, lower=folder.lower, max_seq_length=max_seq_length)
            return Examples(inputs, {"labels": _labels(sentences, task)})

        training = examples_of("train.tsv") if do_train else None
        if training and max_train_samples and max_train_samples < len(training):
            training = training.drawn(max_train_samples, seed)
            console.print(f"of these, {max_train_samples:,} are drawn")
        predicting = {name: examples_of(file) for name, file in task.files().items()} if do_eval else {}
        loaded = folder.load(BertForSequenceClassification, seed, trained=not do_train, **_head(task, dropout))
        model = loaded.model
        random = f"; random: {', '.join(loaded.random)}" if loaded.random else ""
        console.print(f"model: {folder.path}, {parameters(model):,} parameters{random}; engine: {engine}")
        results: dict[str, Any] = {}
        if training:
            done = train(model, training, settings, habits, output_dir, device, console)
            save_model(model, folder.vocab_file, folder.lower, output_dir)
            results["training"] = done.figures(len(training))
        if not predicting:
            return

        export(model, ["logits"], output_dir / "model.onnx")
        columns = {"logits": max(1, len(task.labels))}
        agree = True
        for name, examples in predicting.items():
            in_torch = logits_of_torch(model, examples, columns, per_gpu_eval_batch_size, device)
            in_onnx = logits_of_onnx(output_dir / "model.onnx", examples, columns, per_gpu_eval_batch_size)
            said = {"PyTorch": _predictions(in_torch[0], task), "onnxruntime": _predictions(in_onnx[0], task)}
            labels = examples.targets["labels"]
            scores = {key: score(name, values, labels) for key, values in said.items()}
            for key, values in scores.items():
                console.print(f"{name}, {key}: {', '.join(f'{what} {value:.4f}' for what, value in values.items())}")
            apart = distance(in_torch, in_onnx)
            equal = int((said["PyTorch"] == said["onnxruntime"]).sum())
            results[name] = {**scores, "agreement": {"examples": len(labels), "logits_within": apart}}
            if task.labels:
                results[name]["agreement"]["equal_predictions"] = equal
                console.print(f"engines: {equal:,} of {len(labels):,} predictions equal, logits within {apart:.1e}")
            else:
                console.print(f"engines: numbers within {apart:.1e}")
            _write(output_dir / f"predictions_{name}.tsv", task, said["PyTorch"], said["onnxruntime"], labels)
            agree &= apart <= TOLERANCE
        options.epilogue(output_dir, results)
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


def _head(task: Task, dropout: float | None) -> dict[str, Any]:
    """What the task changes in the model's configuration."""
    named = {
        "id2label": dict(enumerate(task.labels or ("score",))),
        "label2id": {name: number for number, name in enumerate(task.labels or ("score",))},
        "problem_type": "single_label_classification" if task.labels else "regression",
    }
    if dropout is None:
        return named
    return {**named, "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}


def _predictions(logits: NDArray[np.float32], task: Task) -> NDArray[Any]:
    return logits.argmax(axis=1) if task.labels else logits[:, 0]


def _write(path: Path, task: Task, in_torch: NDArray[Any], in_onnx: NDArray[Any], labels: NDArray[Any]) -> None:
    def name(value: float) -> str:
        return task.labels[int(value)] if task.labels else f"{value:.6g}"

    with written(path) as file:
        file.write(b"index\tpytorch\tonnxruntime\tlabel\n")
        for row, values in enumerate(zip(in_torch, in_onnx, labels, strict=True)):
            file.write("\t".join((str(row), *map(name, values))).encode() + b"\n")


if __name__ == "__main__":
    typer.run(main)
