"""Flags that run_squad.py and run_glue.py share, and how both end."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import typer
from corpus.workspace import DataError, written
from rich.console import Console
from scoring.squad import ScoreError

from finetuning.settings import Engine, Precision
from ontrain.errors import NonFiniteLossError, OntrainError

__all__ = [
    "AccumulationOption", "BatchOption", "DecayOption", "DropoutOption", "EngineOption", "EpochsOption",
    "EpsilonOption", "EvalBatchOption", "EvalOption", "GroupOption", "InitOption", "KeepOption", "LoggingOption",
    "LowerOption", "MaxStepsOption", "ModelOption", "NoCudaOption", "NormOption", "OutputOption", "OverwriteOption",
    "PadOption", "RandomOption", "RateOption", "SaveOption", "SeedOption", "SkipBadOption", "TrainOption",
    "VocabOption", "WarmupOption", "check_work", "choose_device", "choose_precision", "ended", "epilogue", "speaker",
    "writable", "write_json",
]  # fmt: skip

ModelOption = Annotated[
    str,
    typer.Option(
        "--model_name_or_path", help="Folder with config.json, model.safetensors and vocab.txt; or a hub name."
    ),
]
OutputOption = Annotated[Path, typer.Option("--output_dir", help="Folder for everything the run writes.")]
InitOption = Annotated[
    Path | None, typer.Option("--init_checkpoint", help="Folder whose weights are taken in place of the model's own.")
]
VocabOption = Annotated[Path | None, typer.Option("--vocab_file", help="In place of the model's vocab.txt.")]
LowerOption = Annotated[
    int | None, typer.Option("--do_lower_case", help="0: cased; 1: uncased; else what tokenizer_config.json says.")
]
RandomOption = Annotated[bool, typer.Option("--random_init", help="Begin from random weights, to compare with.")]
TrainOption = Annotated[bool, typer.Option("--do_train", help="Train.")]
EvalOption = Annotated[bool, typer.Option("--do_eval", help="Evaluate, in PyTorch and of the ONNX file.")]
EngineOption = Annotated[Engine, typer.Option("--engine", help="Who trains: ontrain's ORTModule, or PyTorch.")]
BatchOption = Annotated[int, typer.Option("--per_gpu_train_batch_size", help="Examples of a micro-batch.")]
EvalBatchOption = Annotated[int, typer.Option("--per_gpu_eval_batch_size", min=1)]
AccumulationOption = Annotated[int, typer.Option("--gradient_accumulation_steps", help="Micro-batches an update.")]
RateOption = Annotated[float, typer.Option("--learning_rate", help="AdamW's highest.")]
DecayOption = Annotated[float, typer.Option("--weight_decay", help="Of all but biases and LayerNorms.")]
EpsilonOption = Annotated[float, typer.Option("--adam_epsilon")]
NormOption = Annotated[float, typer.Option("--max_grad_norm", help="Gradients are clipped there; 0: never.")]
EpochsOption = Annotated[float, typer.Option("--num_train_epochs")]
MaxStepsOption = Annotated[int, typer.Option("--max_steps", help="Updates in place of epochs, if positive.")]
WarmupOption = Annotated[float, typer.Option("--warmup_proportion", help="Share of the updates, linear; then down.")]
DropoutOption = Annotated[
    float | None, typer.Option("--dropout", min=0, max=0.99, help="In place of the model's own probabilities.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Of the head's weights, the order and dropout.")]
GroupOption = Annotated[bool, typer.Option("--group_by_length", help="Put examples of like length together.")]
PadOption = Annotated[
    bool, typer.Option("--pad_to_max_length", help="Train on --max_seq_length tokens always, not the batch's longest.")
]
NoCudaOption = Annotated[bool, typer.Option("--no_cuda", help="Compute on the CPU.")]
SaveOption = Annotated[int, typer.Option("--save_steps", min=1, help="Updates from checkpoint to checkpoint.")]
KeepOption = Annotated[int, typer.Option("--save_total_limit", min=1, help="Checkpoints that are kept.")]
LoggingOption = Annotated[int, typer.Option("--logging_steps", min=1, help="Updates from line to line.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite_output_dir", help="Begin anew, without its checkpoints.")]
SkipBadOption = Annotated[bool, typer.Option("--skip_bad", help="Leave bad examples out, and count them.")]


def speaker() -> Console:
    """Where a run says what it does; lines stay lines."""
    return Console(soft_wrap=True, markup=False, highlight=False)


def check_work(do_train: bool, do_eval: bool) -> None:
    """Refuse a run that has nothing to do.

    Raises:
        DataError: as said.
    """
    if not do_train and not do_eval:
        raise DataError("nothing to do: give --do_train, --do_eval or both")


def choose_device(no_cuda: bool) -> torch.device:
    """CUDA where it is there and allowed."""
    return torch.device("cuda" if torch.cuda.is_available() and not no_cuda else "cpu")


def choose_precision(fp16: bool, bf16: bool) -> Precision:
    """One of the flags, or neither.

    Raises:
        DataError: both are given.
    """
    if fp16 and bf16:
        raise DataError("--fp16 and --bf16 exclude each other")
    return Precision.fp16 if fp16 else Precision.bf16 if bf16 else Precision.fp32


def writable(folder: Path) -> None:
    """Find out now whether results can be written, not after the training.

    Raises:
        DataError: they cannot.
    """
    with written(folder / ".probe"):
        pass
    (folder / ".probe").unlink()


def write_json(path: Path, value: Any) -> None:
    """Write a file, whole or not at all.

    Raises:
        DataError: the disk is full, or the folder cannot be written.
    """
    with written(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def epilogue(output: Path, results: Mapping[str, Any]) -> None:
    """Write eval_results.json: the command, versions and hardware, and what came out."""
    names = ("ontrain", "torch", "onnxruntime", "transformers", "tokenizers")
    about = {
        "command": shlex.join(["python", Path(sys.argv[0]).name, *sys.argv[1:]]),
        "python": platform.python_version(),
        **{name: version(name) for name in names},
        "cores": os.cpu_count(),
    }
    write_json(output / "eval_results.json", {**about, **results})


@contextmanager
def ended() -> Iterator[None]:
    """Turn what went wrong into one message and an exit code: see the scripts' manuals."""
    try:
        yield
    except NonFiniteLossError as error:
        _fail(str(error), 1)
    except (DataError, ScoreError, OntrainError) as error:
        _fail(str(error), 2)
    except KeyboardInterrupt as error:
        said = str(error) or "interrupted"
        _fail(f"{said}; what is finished stays: give the same command again", 130)


def _fail(message: str, code: int) -> NoReturn:
    Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(f"error: {message}")
    raise typer.Exit(code)
