"""Flags that run_squad.py and run_glue.py share, under the names of Hugging Face's scripts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from harness.files import DataError
from harness.options import Engine, flag, part_of, within

Precision = StrEnum("Precision", ["fp32", "fp16", "bf16"])
"""What `torch.autocast` computes products in; weights and moments are float32."""


@dataclass(frozen=True)
class Settings:
    """What decides the weights that a run ends with; a checkpoint is gone on with under equal settings only."""

    engine: Annotated[Engine, flag("Who trains: ontrain's ORTModule, or PyTorch.")] = Engine.ontrain
    precision: Precision = Precision.fp32
    per_gpu_train_batch_size: Annotated[int, flag("Examples of a micro-batch, in each process.", min=1)] = 8
    gradient_accumulation_steps: Annotated[int, flag("Micro-batches an update, in each process.", min=1)] = 1
    learning_rate: Annotated[float, flag("AdamW's highest.", min=0, max=1)] = 5e-5
    weight_decay: Annotated[float, flag("Of all but biases and LayerNorms.", min=0, max=1)] = 0.0
    adam_epsilon: Annotated[float, flag("AdamW's ε.", min=0, max=1)] = 1e-8
    max_grad_norm: Annotated[float, flag("Gradients are clipped there; 0: never.", min=0)] = 1.0
    num_train_epochs: Annotated[float, flag("Passes over the examples.", min=0, max=1e6)] = 3.0
    max_steps: Annotated[int, flag("Updates in place of epochs, if positive.", min=-1)] = -1
    warmup_proportion: Annotated[float, flag("Share of the updates, linear; then down.", min=0, max=1)] = 0.1
    seed: Annotated[int, flag("Of the head's weights, the order and dropout.", min=0, max=2**63 - 1)] = 42
    group_by_length: Annotated[bool, flag("Put examples of like length together.")] = False
    pad_to_max_length: Annotated[
        bool, flag("Train on --max_seq_length tokens always, not the batch's longest.")
    ] = False  # fmt: skip
    processes: int = 1

    def __post_init__(self) -> None:
        within(self)

    @property
    def micro_batches(self) -> int:
        """Of an update, in all processes."""
        return self.gradient_accumulation_steps * self.processes

    def updates_an_epoch(self, examples: int) -> int:
        """Updates of the weights in one pass over the examples; the last may have fewer of them."""
        return math.ceil(examples / (self.per_gpu_train_batch_size * self.micro_batches))

    def updates(self, examples: int) -> int:
        """All updates of the run: --max_steps if that is positive, else those of --num_train_epochs."""
        of_epochs = math.ceil(self.num_train_epochs * self.updates_an_epoch(examples))
        return self.max_steps if self.max_steps > 0 else of_epochs

    def rate(self, update: int, updates: int) -> float:
        """The learning rate of an update, counted from 0: that of `transformers.get_linear_schedule_with_warmup`."""
        warm = math.ceil(self.warmup_proportion * updates)
        if update < warm:
            return self.learning_rate * update / warm
        return self.learning_rate * (updates - update) / max(1, updates - warm)


@dataclass(frozen=True)
class Habits:
    """What changes no weight: how often is saved and said what."""

    save_steps: Annotated[int, flag("Updates from checkpoint to checkpoint.", min=1)] = 500
    save_total_limit: Annotated[int, flag("Checkpoints that are kept.", min=1)] = 2
    logging_steps: Annotated[int, flag("Updates from line to line.", min=1)] = 50
    overwrite_output_dir: Annotated[bool, flag("Begin anew, without its checkpoints.")] = False


@dataclass(frozen=True, kw_only=True)
class Flags(Habits, Settings):
    """The flags that both scripts have."""

    model_name_or_path: Annotated[str, flag("Folder with config.json, model.safetensors and vocab.txt; or a hub name.")]
    output_dir: Annotated[Path, flag("Folder for everything the run writes.")]
    do_train: Annotated[bool, flag("Train.")] = False
    do_eval: Annotated[bool, flag("Evaluate, in PyTorch and of the ONNX file.")] = False
    init_checkpoint: Annotated[
        Path | None, flag("Folder whose weights are taken in place of the model's own.", missing="no such folder")
    ] = None
    vocab_file: Annotated[Path | None, flag("In place of the model's vocab.txt.", missing="no such file")] = None
    do_lower_case: Annotated[int | None, flag("0: cased; 1: uncased; else what tokenizer_config.json says.")] = None
    random_init: Annotated[bool, flag("Begin from random weights, to compare with.")] = False
    fp16: Annotated[bool, flag("Products in float16, the loss scaled.")] = False
    bf16: Annotated[bool, flag("Products in bfloat16.")] = False
    per_gpu_eval_batch_size: Annotated[int, flag("Examples of a batch in evaluation.", min=1)] = 8
    dropout: Annotated[float | None, flag("In place of the model's own probabilities.", min=0, max=0.99)] = None
    no_cuda: Annotated[bool, flag("Compute on the CPU.")] = False
    skip_bad: Annotated[bool, flag("Leave bad examples out, and count them.")] = False

    def __post_init__(self) -> None:
        if not self.do_train and not self.do_eval:
            raise DataError("nothing to do: give --do_train, --do_eval or both")
        if self.fp16 and self.bf16:
            raise DataError("--fp16 and --bf16 exclude each other")
        super().__post_init__()

    def settings(self, processes: int) -> Settings:
        """What decides the weights."""
        precision = Precision.fp16 if self.fp16 else Precision.bf16 if self.bf16 else Precision.fp32
        settings: Settings = part_of(Settings, self, precision=precision, processes=processes)
        return settings
