"""What decides the weights that a run ends with, under the names of Hugging Face's run_squad.py and run_glue.py."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from corpus.workspace import DataError

__all__ = ["Engine", "Habits", "Precision", "Settings"]


class Engine(StrEnum):
    """Who runs forward and backward: ontrain's ORTModule, or PyTorch itself."""

    ontrain = "ontrain"
    pytorch = "pytorch"


class Precision(StrEnum):
    """What `torch.autocast` computes products in; weights and moments are float32."""

    fp32 = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"


@dataclass(frozen=True)
class Settings:
    """A checkpoint is gone on with under equal settings only.

    Raises:
        DataError: a number is out of range; names the flag.
    """

    engine: Engine = Engine.ontrain
    precision: Precision = Precision.fp32
    per_gpu_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    learning_rate: float = 5e-5
    weight_decay: float = 0.0
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    num_train_epochs: float = 3.0
    max_steps: int = -1
    warmup_proportion: float = 0.1
    seed: int = 42
    group_by_length: bool = False
    pad_to_max_length: bool = False
    processes: int = 1

    def __post_init__(self) -> None:
        for name, low, high in (
            ("per_gpu_train_batch_size", 1, math.inf),
            ("gradient_accumulation_steps", 1, math.inf),
            ("learning_rate", 0, 1),
            ("weight_decay", 0, 1),
            ("adam_epsilon", 0, 1),
            ("max_grad_norm", 0, math.inf),
            ("num_train_epochs", 0, 1e6),
            ("max_steps", -1, math.inf),
            ("warmup_proportion", 0, 1),
            ("seed", 0, 2**63 - 1),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise DataError(f"--{name} {value} is not between {low} and {high}")

    @property
    def micro_batches(self) -> int:
        """Of an update, in all processes."""
        return self.gradient_accumulation_steps * self.processes

    def updates_an_epoch(self, examples: int) -> int:
        """Updates of the weights in one pass over the examples; the last may have fewer of them."""
        return math.ceil(examples / (self.per_gpu_train_batch_size * self.micro_batches))

    def updates(self, examples: int) -> int:
        """All updates of the run: --max_steps if that is positive, else those of --num_train_epochs."""
        if self.max_steps > 0:
            return self.max_steps
        return math.ceil(self.num_train_epochs * self.updates_an_epoch(examples))

    def rate(self, update: int, updates: int) -> float:
        """The learning rate of an update, counted from 0: from 0 up over --warmup_proportion, then down to 0.

        That of `transformers.get_linear_schedule_with_warmup`.
        """
        warm = math.ceil(self.warmup_proportion * updates)
        if update < warm:
            return self.learning_rate * update / warm
        return self.learning_rate * (updates - update) / max(1, updates - warm)


@dataclass(frozen=True)
class Habits:
    """What changes no weight: how often is saved and said what."""

    save_steps: int = 500
    save_total_limit: int = 2
    logging_steps: int = 50
    overwrite_output_dir: bool = False
