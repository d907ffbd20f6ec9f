"""What the pre-training loop gives an engine and asks of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from dataset import IGNORED, Batch
from harness.files import DataError
from harness.processes import Team
from torch import Tensor

from ontrain.errors import OptionError
from ontrain.training import amp
from pretraining.flags import Options


@dataclass(frozen=True)
class Micro:
    """A micro-batch, and how its labels relate to those of a mean one (1 where there is a single one)."""

    batch: Batch
    share: float = 1.0


@dataclass(frozen=True)
class Outcome:
    """What an update says.

    Attributes:
        losses: float32 [3], means over the micro-batches: whole loss, masked words, next sentence.
        grad_norm: of the gradient before clipping, 0-d.
        finite: whether the update was made; a gradient that overflowed in float16 is left out.
        loss_scale: with which it was made.
    """

    losses: Tensor
    grad_norm: Tensor
    finite: bool = True
    loss_scale: float = 1.0


def gather(batches: Iterator[Batch], count: int, team: Team) -> tuple[list[Micro], int, int]:
    """Return an update's micro-batches with their shares of its labels, its sequences and tokens in all processes."""
    parts: list[Batch] = []
    failed: DataError | None = None
    try:
        parts += itertools.islice(batches, count)
    except DataError as error:
        failed = error
    labels = [int((batch.masked_lm_labels != IGNORED).sum()) for batch in parts]
    sequences = sum(len(batch.input_ids) for batch in parts)
    tokens = sum(int(batch.input_mask.sum()) for batch in parts)
    everywhere = team.total([sum(labels), sequences, tokens, len(parts), failed is not None])
    if everywhere[4]:
        raise failed or DataError("another process could not read its data")
    mean = max(everywhere[0] / everywhere[3], 1.0)
    micros = [Micro(batch, labelled / mean) for batch, labelled in zip(parts, labels, strict=True)]
    return micros, int(everywhere[1]), int(everywhere[2])


def loss_scaler(options: Options) -> amp.LossScaler | None:
    """Return the scaler that --fp16 and --loss_scale ask for: 0 is a dynamic one."""
    if not options.fp16:
        return None
    if options.loss_scale:
        return amp.DynamicLossScaler(automatic_update=False, loss_scale=max(options.loss_scale, 1.0))
    return amp.DynamicLossScaler()


def without_decay(names: Sequence[str]) -> list[str]:
    """Return the parameters that get no weight decay: biases and layer norms."""
    return [name for name in names if any(part in name for part in ("bias", "gamma", "beta", "LayerNorm"))]


class TrainerEngine:
    """What an engine around `ORTTrainer` passes on to its `trainer`."""

    trainer: Any
    device: str
    weighted: bool
    """Whether the step takes a micro-batch's share of the labels."""

    def feeds(self, micro: Micro) -> list[Tensor]:
        """Return the arguments of a training step."""
        tensors = [tensor.to(self.device, non_blocking=True) for tensor in micro.batch]
        return [*tensors, torch.tensor(micro.share, device=self.device)] if self.weighted else tensors

    def save(self, folder: Path, user: Mapping[str, Any]) -> None:
        """Write all state and `user`; called by every process."""
        self.trainer.save_checkpoint(folder, user_dict=user)

    def load(self, folder: Path) -> dict[str, Any]:
        """Take over what `save` wrote and return its `user`."""
        return self.trainer.load_checkpoint(folder)

    def weights(self, micro: Micro) -> dict[str, Tensor]:
        """Return the parameters by the model's own names; `micro` is a batch as the first step would get it."""
        with limit_by_its_flag():
            self.trainer.prepare(*self.feeds(micro))  # a state that was loaded is taken over with the first batch
        return self.trainer.state_dict(pytorch_format=True)

    def profile(self, micro: Micro) -> list[dict[str, Any]]:
        """Return the milliseconds of each operator in a step; the state stays."""
        with limit_by_its_flag():
            return self.trainer.profile(*self.feeds(micro))

    def graph(self) -> ir.Model | None:
        """Return the graph of a step, None where there is none."""
        return self.trainer.step_model()

    def memory(self) -> dict[str, int]:
        """Return bytes by what holds them, as far as the engine knows."""
        return self.trainer.peak_memory()


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
