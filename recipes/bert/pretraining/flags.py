"""The flags of a pre-training run, checked together before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from harness.files import DataError
from harness.options import Engine, flag, within

from ontrain.errors import OptionError

Schedule = StrEnum("Schedule", ["warmup_poly", "warmup_linear", "warmup_cosine", "warmup_constant"])
"""How the learning rate goes on after the warmup."""


@dataclass(frozen=True)
class Options:
    """The flags; the top of run_pretraining.py is their manual."""

    input_dir: Annotated[Path, flag("Folder of HDF5 files with training in their names.", missing="no such folder")]
    output_dir: Annotated[Path, flag("For everything that the run writes.")]
    config_file: Annotated[Path | None, flag("The model's sizes, bert_config.json.", missing="no such file")] = None
    bert_model: Annotated[str, flag("A published model's sizes, without --config_file.")] = "bert-large-uncased"
    init_checkpoint: Annotated[
        Path | None,
        flag(
            "Weights to begin with: a checkpoint, Hugging Face's folder, a .pt.",
            missing="no such file or folder with weights",
        ),
    ] = None
    max_seq_length: Annotated[int, flag("Tokens a sequence, as in the files: [CLS] a [SEP] b [SEP].", min=5)] = 512
    max_predictions_per_seq: Annotated[int, flag("Masked words a sequence.", min=1)] = 80
    train_batch_size: Annotated[int, flag("Sequences an update and process.", min=1)] = 32
    learning_rate: Annotated[float, flag("LAMB's, at the end of the warmup.", min=0)] = 5e-5
    num_train_epochs: Annotated[
        float | None, flag("End when the data were gone through so often, before --max_steps.")
    ] = None
    max_steps: Annotated[float, flag("Updates of this phase.", min=1)] = 1000
    warmup_proportion: Annotated[float, flag("Share of them with a rising rate.")] = 0.01
    schedule: Annotated[Schedule, flag("How the rate goes on.")] = Schedule.warmup_poly
    max_grad_norm: Annotated[float, flag("Clip the gradient to this norm; 0: do not.", min=0)] = 1.0
    local_rank: Annotated[int, flag("Which GPU, as old launchers pass it.")] = -1
    use_env: Annotated[bool, flag("Ask the launcher's environment instead.")] = False
    seed: Annotated[int, flag("Of initial weights, dropout and the data's order.", min=0, max=2**63 - 1)] = 42
    gradient_accumulation_steps: Annotated[int, flag("Parts of the batch, to need less memory.", min=1)] = 1
    fp16: Annotated[bool, flag("Mixed precision with float16.")] = False
    bf16: Annotated[bool, flag("Mixed precision with bfloat16.")] = False
    loss_scale: Annotated[float, flag("With --fp16; 0: found as it goes.", min=0, max=1 << 24)] = 0.0
    log_freq: Annotated[float, flag("Steps from row to row of the log.", min=1)] = 1.0
    checkpoint_activations: Annotated[bool, flag("Compute the layers again going backward.")] = False
    resume_from_checkpoint: Annotated[bool, flag("Go on from --output_dir's newest checkpoint.")] = False
    resume_step: Annotated[int, flag("Go on from ckpt_N instead; -1: the newest.")] = -1
    num_steps_per_checkpoint: Annotated[int, flag("Steps between checkpoints.", min=1)] = 100
    keep_checkpoints: Annotated[int, flag("How many stay.", min=1)] = 3
    skip_checkpoint: Annotated[bool, flag("Write no checkpoint.")] = False
    phase2: Annotated[bool, flag("Go on behind phase 1, with longer sequences.")] = False
    phase1_end_step: Annotated[int, flag("Updates that phase 1 had.", min=0)] = 7038
    allreduce_post_accumulation: Annotated[bool, flag("Add up gradients over processes once an update.")] = False
    allreduce_post_accumulation_fp16: Annotated[bool, flag("In float16: refused, it is done in float32.")] = False
    deepspeed_zero_stage: Annotated[
        bool, flag("Share out the moments (ZeRO stage 1).", "--deepspeed_zero_stage", "--partition_optimizer")
    ] = False
    gpu_memory_limit_gb: Annotated[float | None, flag("Refuse a step that needs more memory, in GiB.")] = None
    do_train: Annotated[bool, flag("Train; there is nothing else to do.")] = False
    json_summary: Annotated[
        Path | None, flag("The log; by default dllogger.json in --output_dir.", "--json-summary", "--json_summary")
    ] = None
    disable_progress_bar: Annotated[bool, flag("Lines only.")] = False
    use_ib: Annotated[bool, flag("Have NCCL use InfiniBand even where it is switched off.")] = False
    engine: Annotated[Engine, flag("What runs the steps.")] = Engine.ontrain
    device: Annotated[str | None, flag("cpu, cuda:1 …; by default a GPU if there is one.")] = None

    def __post_init__(self) -> None:
        if not self.do_train:
            raise DataError("nothing to do: --do_train is missing")
        self._check_ranges()
        if self.train_batch_size % self.gradient_accumulation_steps:
            divisors = [n for n in range(1, self.train_batch_size + 1) if self.train_batch_size % n == 0]
            nearest = min(divisors, key=lambda n: abs(n - self.gradient_accumulation_steps))
            raise DataError(
                f"--train_batch_size {self.train_batch_size} is not divisible by --gradient_accumulation_steps "
                f"{self.gradient_accumulation_steps}: the batch of an update is cut into that many equal parts; "
                f"nearest: {nearest}"
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
        within(self)
        for name in ("max_steps", "log_freq"):
            if getattr(self, name) % 1:
                raise DataError(f"--{name} {getattr(self, name)} is no whole number")
        if not 0 <= self.warmup_proportion < 1:
            raise DataError(
                f"--warmup_proportion {self.warmup_proportion} is not in [0, 1): it is a share of the steps"
            )
        for name in ("gpu_memory_limit_gb", "num_train_epochs"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise DataError(f"--{name} {value} is not above 0")

    @property
    def phase(self) -> int:
        """1 or 2."""
        return 2 if self.phase2 else 1

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
        return {name: str(v) if isinstance(v, Path | StrEnum) else v for name, v in asdict(self).items()}


@contextmanager
def limit_by_its_flag() -> Iterator[None]:
    """Name --gpu_memory_limit_gb where the trainer names its own option for it."""
    try:
        yield
    except OptionError as error:
        if "device.mem_limit" not in error.problem:
            raise
        raise OptionError(
            error.problem.replace("device.mem_limit", "--gpu_memory_limit_gb"),
            reason=error.reason,
            way_out="raise --gradient_accumulation_steps, so that fewer sequences go in at a time, or the limit",
        ) from None
