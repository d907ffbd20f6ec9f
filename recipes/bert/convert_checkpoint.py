"""Weights of BERT from one form into another: run_pretraining.py's checkpoint, Hugging Face's folder, a PyTorch file.

    $ python convert_checkpoint.py RUN/ckpt_8601 bert-wiki --vocab_file vocab.txt   # for transformers and run_squad.py
    $ python convert_checkpoint.py RUN/ckpt_8601 bert-wiki.pt                       # a state_dict, by torch.load
    $ python convert_checkpoint.py bert-wiki RUN2/ckpt_0                            # back, for --init_checkpoint
    $ python convert_checkpoint.py ckpt_8601.pt bert-wiki --config_file bert_config.json

The last reads files of NVIDIA's and onnxruntime's recipes: tensors only, never code. What is made follows from the
names: a file .pt or .bin holds a state_dict; from a checkpoint comes Hugging Face's folder; from anything else a
checkpoint, unless --to says otherwise. Moments and counters are left out, and the vocabulary has its true size, where
training pads it to a multiple of 8.

Exit codes: 0 done; 2 a flag, the weights or the disk is at fault.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from harness.needs import need

need("ontrain", "torch", "numpy", "typer", "rich", "h5py", "tokenizers")

import shutil
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from harness.files import DataError, written
from harness.options import execute, flag, parse

Form = StrEnum("Form", ["huggingface", "pytorch", "checkpoint"])


@dataclass(frozen=True)
class Options:
    """The flags; the top of convert_checkpoint.py is their manual."""

    source: Annotated[Path, flag("What to read.", argument=True, missing="no such file or folder with weights")]
    target: Annotated[Path, flag("What to make.", argument=True)]
    to: Annotated[Form | None, flag("What it is to be, where the names do not say it.")] = None
    config_file: Annotated[
        Path | None, flag("The model's sizes, for a source that lacks them.", missing="no such file")
    ] = None
    vocab_file: Annotated[
        Path | None, flag("Put beside the weights in Hugging Face's folder.", missing="no such file")
    ] = None


if __name__ == "__main__":
    OPTIONS = parse(Options)  # before torch, for which --help need not wait

import torch
from pretraining.weights import hugging_face_model, plain, read_config, read_weights
from transformers.utils.logging import disable_progress_bar

from ontrain.checkpoint import write_checkpoint


def convert(source: Path, target: Path, to: Form | None, config_file: Path | None, vocab_file: Path | None) -> str:
    """Read `source`, write `target`, and return what was made."""
    if target.exists():
        raise DataError(f"{target} exists: remove it, or name another")
    state, config = read_weights(source)
    if config_file is not None:
        config = read_config(config_file, "", 1)
    if config is None:
        raise DataError(f"{source} does not say the model's sizes: give --config_file bert_config.json")
    model = hugging_face_model(state, config)  # checks all names and shapes
    form = to or form_of(source, target)
    if vocab_file is not None and form is not Form.huggingface:
        raise DataError(f"--vocab_file goes into Hugging Face's folder, and {form} was asked for")
    if form is Form.pytorch:
        with written(target) as file:
            torch.save(model.state_dict(), file)
    elif form is Form.checkpoint:
        tensors = {name: p.detach() for name, p in model.named_parameters()}
        user = {"identity": {"config": plain(config)}, "source": str(source)}
        write_checkpoint(target, {"model": tensors}, {"user_dict": user})
    else:
        beside = target.with_name(target.name + ".part")
        shutil.rmtree(beside, ignore_errors=True)
        disable_progress_bar()
        model.save_pretrained(beside)
        if vocab_file is not None:
            shutil.copy(vocab_file, beside / "vocab.txt")
        beside.replace(target)
    return f"{target}: {form}, {sum(p.numel() for p in model.parameters()):,} parameters"


def form_of(source: Path, target: Path) -> Form:
    """Return what the names ask for."""
    if target.suffix in (".pt", ".bin"):
        return Form.pytorch
    return Form.huggingface if (source / "manifest.json").is_file() or source.is_file() else Form.checkpoint


if __name__ == "__main__":
    execute(lambda o: print(convert(o.source, o.target, o.to, o.config_file, o.vocab_file)), OPTIONS)
