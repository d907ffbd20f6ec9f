"""Flags that run_squad.py and run_glue.py share, and how both end."""

from __future__ import annotations

import inspect
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_type_hints

import typer
from corpus.workspace import DataError, written
from rich.console import Console
from scoring.squad import ScoreError

from finetuning.settings import Engine, Habits, Precision, Settings
from ontrain.errors import NonFiniteLossError, OntrainError

if TYPE_CHECKING:  # what follows imports torch, and --help need not wait for it
    from transformers import PreTrainedModel

    from finetuning.examples import Examples
    from finetuning.models import ModelFolder
    from finetuning.processes import Team

__all__ = ["Flags", "ended", "epilogue", "shared", "speaker", "writable", "write_json"]


def _flag(name: str, text: str | None = None, **limits: Any) -> Any:
    return typer.Option(f"--{name}", help=text, **limits)


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags that both scripts have, under their names.

    Raises:
        DataError: two exclude each other, or there is nothing to do.
    """

    model_name_or_path: Annotated[
        str, _flag("model_name_or_path", "Folder with config.json, model.safetensors and vocab.txt; or a hub name.")
    ]
    output_dir: Annotated[Path, _flag("output_dir", "Folder for everything the run writes.")]
    do_train: Annotated[bool, _flag("do_train", "Train.")] = False
    do_eval: Annotated[bool, _flag("do_eval", "Evaluate, in PyTorch and of the ONNX file.")] = False
    init_checkpoint: Annotated[
        Path | None, _flag("init_checkpoint", "Folder whose weights are taken in place of the model's own.")
    ] = None
    vocab_file: Annotated[Path | None, _flag("vocab_file", "In place of the model's vocab.txt.")] = None
    do_lower_case: Annotated[
        int | None, _flag("do_lower_case", "0: cased; 1: uncased; else what tokenizer_config.json says.")
    ] = None
    random_init: Annotated[bool, _flag("random_init", "Begin from random weights, to compare with.")] = False
    engine: Annotated[Engine, _flag("engine", "Who trains: ontrain's ORTModule, or PyTorch.")] = Engine.ontrain
    fp16: Annotated[bool, _flag("fp16", "Products in float16, the loss scaled.")] = False
    bf16: Annotated[bool, _flag("bf16", "Products in bfloat16.")] = False
    per_gpu_train_batch_size: Annotated[
        int, _flag("per_gpu_train_batch_size", "Examples of a micro-batch, in each process.")
    ] = 8
    per_gpu_eval_batch_size: Annotated[int, _flag("per_gpu_eval_batch_size", min=1)] = 8
    gradient_accumulation_steps: Annotated[
        int, _flag("gradient_accumulation_steps", "Micro-batches an update, in each process.")
    ] = 1
    learning_rate: Annotated[float, _flag("learning_rate", "AdamW's highest.")] = 5e-5
    weight_decay: Annotated[float, _flag("weight_decay", "Of all but biases and LayerNorms.")] = 0.0
    adam_epsilon: Annotated[float, _flag("adam_epsilon")] = 1e-8
    max_grad_norm: Annotated[float, _flag("max_grad_norm", "Gradients are clipped there; 0: never.")] = 1.0
    num_train_epochs: Annotated[float, _flag("num_train_epochs")] = 3.0
    max_steps: Annotated[int, _flag("max_steps", "Updates in place of epochs, if positive.")] = -1
    warmup_proportion: Annotated[float, _flag("warmup_proportion", "Share of the updates, linear; then down.")] = 0.1
    dropout: Annotated[
        float | None, _flag("dropout", "In place of the model's own probabilities.", min=0, max=0.99)
    ] = None
    seed: Annotated[int, _flag("seed", "Of the head's weights, the order and dropout.")] = 42
    group_by_length: Annotated[bool, _flag("group_by_length", "Put examples of like length together.")] = False
    pad_to_max_length: Annotated[
        bool, _flag("pad_to_max_length", "Train on --max_seq_length tokens always, not the batch's longest.")
    ] = False
    no_cuda: Annotated[bool, _flag("no_cuda", "Compute on the CPU.")] = False
    save_steps: Annotated[int, _flag("save_steps", "Updates from checkpoint to checkpoint.", min=1)] = 500
    save_total_limit: Annotated[int, _flag("save_total_limit", "Checkpoints that are kept.", min=1)] = 2
    logging_steps: Annotated[int, _flag("logging_steps", "Updates from line to line.", min=1)] = 50
    overwrite_output_dir: Annotated[bool, _flag("overwrite_output_dir", "Begin anew, without its checkpoints.")] = False
    skip_bad: Annotated[bool, _flag("skip_bad", "Leave bad examples out, and count them.")] = False

    def __post_init__(self) -> None:
        if not self.do_train and not self.do_eval:
            raise DataError("nothing to do: give --do_train, --do_eval or both")
        if self.fp16 and self.bf16:
            raise DataError("--fp16 and --bf16 exclude each other")

    def settings(self, processes: int) -> Settings:
        """What decides the weights.

        Raises:
            DataError: a number is out of range.
        """
        precision = Precision.fp16 if self.fp16 else Precision.bf16 if self.bf16 else Precision.fp32
        given = {field.name: getattr(self, field.name) for field in fields(Settings) if hasattr(self, field.name)}
        return Settings(**given, precision=precision, processes=processes)

    def habits(self) -> Habits:
        """What does not."""
        return Habits(**{field.name: getattr(self, field.name) for field in fields(Habits)})

    def folder(self, max_seq_length: int) -> ModelFolder:
        """The model to begin with.

        Raises:
            DataError: a file is missing or malformed, or the model has fewer positions.
        """
        from finetuning.models import ModelFolder

        folder = ModelFolder.open(
            self.model_name_or_path,
            init_checkpoint=self.init_checkpoint,
            vocab_file=self.vocab_file,
            lower=None if self.do_lower_case is None else self.do_lower_case > 0,
            random_init=self.random_init,
        )
        folder.check_length(max_seq_length)
        return folder

    def load(
        self, folder: ModelFolder, task: type[PreTrainedModel], console: Console, **changes: Any
    ) -> PreTrainedModel:
        """The task's model, with the weights that there are; what is random is said.

        Raises:
            DataError: the weights cannot be read, or are another model's.
        """
        from finetuning.models import parameters

        if self.dropout is not None:
            changes |= {"hidden_dropout_prob": self.dropout, "attention_probs_dropout_prob": self.dropout}
        loaded = folder.load(task, self.seed, trained=not self.do_train, **changes)
        random = f"; random: {', '.join(loaded.random)}" if loaded.random else ""
        console.print(f"model: {folder.path}, {parameters(loaded.model):,} parameters{random}; engine: {self.engine}")
        return loaded.model

    def train(
        self,
        model: PreTrainedModel,
        folder: ModelFolder,
        examples: Examples,
        settings: Settings,
        console: Console,
        team: Team,
    ) -> dict[str, Any]:
        """Train the model in place, have the first process write it, and return what eval_results.json says of that.

        Raises:
            DataError, CheckpointError, ProcessError, NonFiniteLossError, Interrupted: as `finetuning.training.train`.
        """
        from finetuning.models import save_model
        from finetuning.training import train

        done = train(model, examples, settings, self.habits(), self.output_dir, console, team)
        if team.first:
            save_model(model, folder.vocab_file, folder.lower, self.output_dir)
        return done.figures(len(examples), team.size)


def shared(main: Callable[..., None]) -> Callable[..., None]:
    """Give a script's function, beside its own parameters, those of `Flags`, which it gets as `flags`."""
    own = [one for one in inspect.signature(main, eval_str=True).parameters.values() if one.name != "flags"]
    hints = get_type_hints(Flags, include_extras=True)
    theirs = [one.replace(annotation=hints[name]) for name, one in inspect.signature(Flags).parameters.items()]

    @wraps(main)
    def script(**given: Any) -> None:
        with ended():
            flags = Flags(**{name: given.pop(name) for name in hints if name in given})
            main(flags=flags, **given)

    both = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *theirs)]
    script.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
    return script


def speaker(*, quiet: bool = False) -> Console:
    """Where a run says what it does; lines stay lines."""
    return Console(soft_wrap=True, markup=False, highlight=False, quiet=quiet)


def writable(folder: Path) -> None:
    """Find out now whether results can be written, not after the training.

    Raises:
        DataError: they cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".probe").touch()
        (folder / ".probe").unlink()
    except OSError as error:
        raise DataError(
            f"--output_dir {folder} cannot be written: {error.strerror}; name a folder that can be"
        ) from None


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
