"""The options of run_lm.py: those of Hugging Face's run_language_modeling.py as onnxruntime's example patched it."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ontrain.errors import InputError, OptionError, nearest

ENGINES = ("ontrain", "pytorch")
LATEST = "latest"


def _option(default: Any, help_: str, *aliases: str, **more: Any) -> Any:
    return dataclasses.field(default=default, metadata={"help": help_, "aliases": aliases, **more})


@dataclass(frozen=True)
class Arguments:
    """The options under their own names; `parse` reads and checks them."""

    # What is trained on, and where the results go.
    output_dir: str = _option("", "folder for everything that the run writes", metavar="DIR")
    train_data_file: str | None = _option(None, "UTF-8 text to train on", metavar="FILE")
    eval_data_file: str | None = _option(None, "UTF-8 text to measure perplexity on", metavar="FILE")
    block_size: int = _option(-1, "tokens of a sequence; -1 for as many as the model has positions")
    overwrite_output_dir: bool = _option(False, "let a new run replace what is in --output_dir")

    # The model and its vocabulary.
    model_name_or_path: str | None = _option(None, "folder with config.json and model.safetensors, or a hub's name")
    model_type: str = _option("gpt2", "gpt2 or the name of one of its sizes, nothing else")
    config_name: str | None = _option(
        None, "from scratch: gpt2, gpt2-medium, gpt2-large, gpt2-xl, or a folder with config.json"
    )
    config_overrides: str = _option("", "from scratch: changes to the configuration", metavar="n_layer=4,n_embd=128")
    tokenizer_name: str | None = _option(None, "folder with vocab.json and merges.txt, or a hub's name")
    vocab_file: str | None = _option(None, "vocab.json, instead of --tokenizer_name", metavar="FILE")
    merges_file: str | None = _option(None, "merges.txt, instead of --tokenizer_name", metavar="FILE")
    cache_dir: str | None = _option(None, "where a hub's files are kept", metavar="DIR")

    # What to do.
    do_train: bool = _option(False, "train")
    do_eval: bool = _option(False, "export the model, measure perplexity in onnxruntime, and let it write")
    do_eval_in_torch: bool = _option(False, "measure perplexity in PyTorch, too, and compare")
    evaluate_during_training: bool = _option(False, "the same every --eval_steps")
    plan_only: bool = _option(False, "capture the model, plan a step, say what memory it takes, and stop")

    # Who trains.
    engine: str = _option("ontrain", "ontrain: one graph a step; pytorch: eager, with the same batches and updates")
    no_cuda: bool = _option(False, "stay on the CPU")
    fp16: bool = _option(False, "products in float16, under a dynamic loss scale")

    # How.
    per_gpu_train_batch_size: int = _option(
        8, "sequences a process takes at a time", "--per_device_train_batch_size", least=1
    )
    per_gpu_eval_batch_size: int = _option(8, "the same in evaluation", "--per_device_eval_batch_size", least=1)
    gradient_accumulation_steps: int = _option(1, "batches an update", least=1)
    learning_rate: float = _option(5e-5, "Adam's, after the warmup; from there linearly to 0", least=0)
    weight_decay: float = _option(0.0, "decoupled; not of biases and layer norms", least=0)
    adam_epsilon: float = _option(1e-8, "Adam's", least=0)
    max_grad_norm: float = _option(1.0, "clip the gradient at this norm; 0 for not at all", least=0)
    num_train_epochs: float = _option(3.0, "may be a fraction", least=0)
    max_steps: int = _option(-1, "updates, instead of --num_train_epochs", least=-1)
    warmup_steps: int = _option(0, "updates in which the learning rate rises from 0", least=0)
    logging_steps: int = _option(500, "updates from line to line", least=1)
    logging_first_step: bool = _option(False, "a line after the first update, too")
    eval_steps: int = _option(0, "updates from evaluation to evaluation; 0 for --logging_steps", least=0)
    save_steps: int = _option(500, "updates from checkpoint to checkpoint; 0 for none", least=0)
    save_total_limit: int | None = _option(None, "checkpoints to keep, the newest", metavar="N", number=int, least=1)
    resume_from_checkpoint: str | None = _option(
        None, "go on from a checkpoint-N, by default the newest in --output_dir", metavar="DIR", nargs="?", const=LATEST
    )
    seed: int = _option(42, "of the initial weights, the order of the batches, dropout and sampling", least=0)

    # What the model writes at an evaluation.
    prompt: str | None = _option(None, "what it continues; by default the first tokens of --eval_data_file")
    sample_length: int | None = _option(
        None, "tokens to write; 0 for none; by default 40, or as many as the model has positions for", metavar="N",
        number=int, least=0,
    )  # fmt: skip
    temperature: float = _option(1.0, "of the sampled text", least=0)
    top_k: int = _option(50, "sample from so many tokens; 0 for all", least=0)
    top_p: float = _option(0.95, "sample from the fewest tokens that have this probability together", least=0)

    @property
    def evaluates(self) -> bool:
        """Whether there is anything to evaluate, at the end or while training."""
        return self.do_eval or self.do_eval_in_torch or self.evaluate_during_training

    @property
    def evaluation_interval(self) -> int:
        """Updates from evaluation to evaluation while training; 0 for none."""
        return (self.eval_steps or self.logging_steps) if self.evaluate_during_training else 0


def parse(argv: Sequence[str]) -> Arguments:
    """Read a command line."""
    options = vars(_parser().parse_args(list(argv)))
    use_ort = options.pop("use_ort")
    if use_ort is not None:
        engine = ENGINES[0] if use_ort else ENGINES[1]
        if options.setdefault("engine", engine) != engine:
            raise OptionError("--use_ort and --engine contradict each other", way_out="give one of them")
    arguments = Arguments(**options)
    _check(arguments)
    return arguments


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        unknown = message.removeprefix("unrecognized arguments: ").split()[0]
        way_out = "see --help"
        if unknown.startswith("--"):
            way_out = f"nearest: {nearest(unknown, self._option_string_actions)}"
        raise OptionError(message, way_out=way_out)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="run_lm.py", allow_abbrev=False, argument_default=argparse.SUPPRESS,
        description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    for field in dataclasses.fields(Arguments):
        about, kind = {key: value for key, value in field.metadata.items() if key != "least"}, type(field.default)
        names = (f"--{field.name}", *about.pop("aliases"))
        default = "off" if kind is bool else "none" if field.default in (None, "") else field.default
        text = f"{about.pop('help')} [default: {default}]"
        if kind is bool:
            parser.add_argument(*names, action="store_true", help=text)
        else:
            about.setdefault("metavar", {int: "N", float: "X"}.get(kind, "NAME"))
            of = about.pop("number", None) or {int: int, float: float}.get(kind, str)
            parser.add_argument(*names, type=of, help=text, **about)
    parser.add_argument(
        "--use_ort", "--ort_trainer", type=_truth, nargs="?", const=True, default=None, metavar="true|false",
        help="another way to say --engine: true for ontrain, false for pytorch [default: what --engine says]",
    )  # fmt: skip
    return parser


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() in ("true", "1")


def _check(arguments: Arguments) -> None:
    for field in dataclasses.fields(arguments):
        value, least = getattr(arguments, field.name), field.metadata.get("least")
        if least is not None and value is not None and not least <= value < math.inf:
            raise OptionError(f"--{field.name} is {value}", way_out=f"give a number from {least:g}")
    if arguments.block_size != -1 and arguments.block_size < 2:
        raise OptionError(f"--block_size is {arguments.block_size}", way_out="a token and the one after it are two")
    if not 0 < arguments.top_p <= 1:
        raise OptionError(f"--top_p is {arguments.top_p:g}", way_out="a probability above 0, at most 1")
    if arguments.temperature == 0:
        raise OptionError("--temperature is 0", way_out="the greedy text is always written beside the sampled one")
    if arguments.engine not in ENGINES:
        raise OptionError(f"--engine is {arguments.engine!r}", way_out=f"use {' or '.join(ENGINES)}")
    if arguments.model_type not in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"):
        raise OptionError(f"--model_type is {arguments.model_type!r}", way_out="this recipe trains gpt2")
    if not arguments.output_dir and not arguments.plan_only:
        raise OptionError("there is no --output_dir", way_out="name a folder for the results")
    if not (arguments.do_train or arguments.do_eval or arguments.do_eval_in_torch or arguments.plan_only):
        raise OptionError("there is nothing to do", way_out="give --do_train, --do_eval, --do_eval_in_torch or both")
    _check_files(arguments)
    _check_vocabulary(arguments)


def _check_files(arguments: Arguments) -> None:
    for wanted, name in ((arguments.do_train, "train_data_file"), (arguments.evaluates, "eval_data_file")):
        path = getattr(arguments, name)
        if wanted and path is None:
            purpose = "train on" if name.startswith("train") else "evaluate on"
            raise OptionError(f"there is no text to {purpose}", way_out=f"name one by --{name}")
        if path is not None and not Path(path).is_file():
            raise InputError(f"--{name}: there is no file {path!r}")


def _check_vocabulary(arguments: Arguments) -> None:
    if (arguments.vocab_file is None) != (arguments.merges_file is None):
        raise OptionError("a byte-level BPE is two files", way_out="give --vocab_file and --merges_file together")
    if arguments.vocab_file is not None and arguments.tokenizer_name is not None:
        raise OptionError("the vocabulary is named twice", way_out="give --tokenizer_name or the two files")
    if arguments.model_name_or_path is not None and arguments.config_overrides:
        raise OptionError(
            "--config_overrides changes a model that is trained from scratch",
            reason="--model_name_or_path brings weights of its own shapes",
            way_out="leave one of them out",
        )
