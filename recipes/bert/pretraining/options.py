"""The flags of a pre-training run, checked together before anything is loaded."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from corpus.workspace import DataError

__all__ = ["Engine", "Options", "Schedule"]


class Engine(StrEnum):
    """What runs the steps."""

    ontrain = "ontrain"
    pytorch = "pytorch"


class Schedule(StrEnum):
    """How the learning rate goes on after the warmup."""

    warmup_poly = "warmup_poly"
    warmup_linear = "warmup_linear"
    warmup_cosine = "warmup_cosine"
    warmup_constant = "warmup_constant"


@dataclass(frozen=True)
class Options:
    """Every flag of run_pretraining.py under its name; see there for what each means.

    Raises:
        DataError: a number is out of range, or two flags contradict each other.
    """

    input_dir: Path
    output_dir: Path
    config_file: Path | None = None
    bert_model: str = "bert-large-uncased"
    init_checkpoint: Path | None = None
    max_seq_length: int = 512
    max_predictions_per_seq: int = 80
    train_batch_size: int = 32
    learning_rate: float = 5e-5
    num_train_epochs: float | None = None
    max_steps: float = 1000
    warmup_proportion: float = 0.01
    schedule: Schedule = Schedule.warmup_poly
    max_grad_norm: float = 1.0
    local_rank: int = -1
    use_env: bool = False
    seed: int = 42
    gradient_accumulation_steps: int = 1
    fp16: bool = False
    bf16: bool = False
    loss_scale: float = 0.0
    log_freq: float = 1.0
    checkpoint_activations: bool = False
    resume_from_checkpoint: bool = False
    resume_step: int = -1
    num_steps_per_checkpoint: int = 100
    keep_checkpoints: int = 3
    skip_checkpoint: bool = False
    phase2: bool = False
    phase1_end_step: int = 7038
    allreduce_post_accumulation: bool = False
    allreduce_post_accumulation_fp16: bool = False
    deepspeed_zero_stage: bool = False
    gpu_memory_limit_gb: float | None = None
    do_train: bool = False
    json_summary: Path | None = None
    disable_progress_bar: bool = False
    use_ib: bool = False
    engine: Engine = Engine.ontrain
    device: str | None = None

    def __post_init__(self) -> None:
        if not self.do_train:
            raise DataError("nothing to do: --do_train is missing")
        self._check_ranges()
        if self.train_batch_size % self.gradient_accumulation_steps:
            raise DataError(
                f"--train_batch_size {self.train_batch_size} is not divisible by --gradient_accumulation_steps "
                f"{self.gradient_accumulation_steps}: the batch of an update is cut into that many equal parts; "
                f"nearest: {self._nearest_divisor()}"
            )
        if self.max_predictions_per_seq >= self.max_seq_length:
            raise DataError(
                f"--max_predictions_per_seq {self.max_predictions_per_seq} does not fit --max_seq_length "
                f"{self.max_seq_length}: at most all tokens but [CLS] and two [SEP] are predicted"
            )
        if self.fp16 and self.bf16:
            raise DataError("--fp16 and --bf16 exclude each other: give one")
        if self.loss_scale and not self.fp16:
            raise DataError("--loss_scale is for --fp16: gradients in float32 and bfloat16 need no scale")
        if self.resume_step >= 0 and not self.resume_from_checkpoint:
            raise DataError(f"--resume_step {self.resume_step} needs --resume_from_checkpoint")

    def _check_ranges(self) -> None:
        for name, low, high in (
            ("max_seq_length", 5, 1 << 20),  # [CLS] a [SEP] b [SEP]
            ("max_predictions_per_seq", 1, 1 << 20),
            ("train_batch_size", 1, 1 << 30),
            ("gradient_accumulation_steps", 1, 1 << 30),
            ("learning_rate", 0, math.inf),
            ("max_steps", 1, 1 << 40),
            ("max_grad_norm", 0, math.inf),
            ("seed", 0, (1 << 63) - 1),
            ("loss_scale", 0, 1 << 24),
            ("log_freq", 1, 1 << 40),
            ("num_steps_per_checkpoint", 1, 1 << 40),
            ("keep_checkpoints", 1, 1 << 40),
            ("phase1_end_step", 0, 1 << 40),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise DataError(f"--{name} {value} is not between {low} and {high}")
        for name in ("max_steps", "log_freq"):
            if getattr(self, name) % 1:
                raise DataError(f"--{name} {getattr(self, name)} is no whole number")
        if not 0 <= self.warmup_proportion < 1:
            raise DataError(
                f"--warmup_proportion {self.warmup_proportion} is not in [0, 1): it is a share of the steps"
            )
        if self.gpu_memory_limit_gb is not None and not self.gpu_memory_limit_gb > 0:
            raise DataError(f"--gpu_memory_limit_gb {self.gpu_memory_limit_gb} is not above 0")
        if self.num_train_epochs is not None and not self.num_train_epochs > 0:
            raise DataError(f"--num_train_epochs {self.num_train_epochs} is not above 0")

    def _nearest_divisor(self) -> int:
        divisors = [n for n in range(1, self.train_batch_size + 1) if self.train_batch_size % n == 0]
        return min(divisors, key=lambda n: abs(n - self.gradient_accumulation_steps))

    @property
    def steps(self) -> int:
        """Updates of this phase."""
        return int(self.max_steps)

    @property
    def micro_batch(self) -> int:
        """Sequences that one process passes forward and backward at once."""
        return self.train_batch_size // self.gradient_accumulation_steps

    @property
    def offset(self) -> int:
        """What is added to the steps of this phase in names and curves: the steps of the phase before."""
        return self.phase1_end_step if self.phase2 else 0

    @property
    def log_file(self) -> Path:
        """The JSON lines."""
        return self.json_summary or self.output_dir / "dllogger.json"

    def plain(self) -> dict[str, Any]:
        """Return all flags as JSON has them, for the log."""
        return {
            name: str(value) if isinstance(value, Path | StrEnum) else value for name, value in asdict(self).items()
        }
