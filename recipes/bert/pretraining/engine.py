"""What the training loop asks of an engine, and the engine that is ontrain's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import onnx_ir as ir
import torch
from dataset import Batch
from torch import Tensor

from ontrain.distributed import Processes
from ontrain.errors import OptionError
from ontrain.training import ORTTrainer, ORTTrainerOptions, amp, optim
from pretraining.model import PretrainingBert, model_desc, without_decay
from pretraining.options import Options

__all__ = ["Engine", "Micro", "OntrainEngine", "Outcome", "loss_scaler"]


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


_LIMIT = "device.mem_limit"


class Engine(Protocol):
    """Makes updates of a model."""

    def update(self, micros: Sequence[Micro], rate: float) -> Outcome:
        """Add up the gradients of some micro-batches and update the weights."""

    def save(self, folder: Path, user: Mapping[str, Any]) -> None:
        """Write all state and `user`; called by every process."""

    def load(self, folder: Path) -> dict[str, Any]:
        """Take over what `save` wrote and return its `user`."""

    def weights(self, micro: Micro) -> dict[str, Tensor]:
        """Return the parameters by the model's own names; `micro` is a batch as the first step would get it."""

    def profile(self, micro: Micro) -> list[dict[str, Any]]:
        """Return the milliseconds of each operator in a step; the state stays."""

    def graph(self) -> ir.Model | None:
        """Return the graph of a step, None where there is none."""

    def memory(self) -> dict[str, int]:
        """Return bytes by what holds them, as far as the engine knows."""


def loss_scaler(options: Options) -> amp.LossScaler | None:
    """Return the scaler that --fp16 and --loss_scale ask for: 0 is a dynamic one."""
    if not options.fp16:
        return None
    if options.loss_scale:
        return amp.DynamicLossScaler(automatic_update=False, loss_scale=max(options.loss_scale, 1.0))
    return amp.DynamicLossScaler()


class OntrainEngine:
    """`ORTTrainer`: forward, both losses, backward, accumulation, clipping and LAMB as one graph."""

    def __init__(self, model: PretrainingBert, options: Options, processes: Processes, device: str) -> None:
        self._weighted = options.gradient_accumulation_steps * processes.world_size > 1
        self._scaler = loss_scaler(options)
        self._model, self._device = model, device
        config = optim.LambConfig(
            lr=options.learning_rate, alpha=0.9, beta=0.999, lambda_coef=0.01, epsilon=1e-6,
            do_bias_correction=True,
            params=[{"params": without_decay([n for n, _ in model.named_parameters()]), "lambda_coef": 0.0}],
        )  # fmt: skip
        self.trainer = ORTTrainer(
            model,
            model_desc(options.max_seq_length, with_share=self._weighted),
            config,
            options=ORTTrainerOptions(_trainer_options(options, processes, device, self._scaler)),
        )

    def update(self, micros: Sequence[Micro], rate: float) -> Outcome:
        self.trainer.optim_config.lr = rate
        scale = 1.0 if self._scaler is None else float(self._scaler.loss_scale)
        total = torch.zeros(3)
        norm = torch.zeros(())
        described = [d.name for d in self.trainer.model_desc.outputs]
        for number, micro in enumerate(micros):
            last = number + 1 == len(micros)
            fetches = [*described, "grad_norm"] if last else described
            with _limit_by_its_flag():
                *losses, final = self.trainer.train_step(*self._feeds(micro), fetches=fetches)
            losses, norm = (losses, final) if last else ([*losses, final], norm)
            total = total.to(losses[0].device) + torch.stack([loss.float().reshape(()) for loss in losses])
        return Outcome(total / len(micros), norm, self.trainer.train_step_info.all_finite, scale)

    def save(self, folder: Path, user: Mapping[str, Any]) -> None:
        self.trainer.save_checkpoint(folder, user_dict=user)

    def load(self, folder: Path) -> dict[str, Any]:
        return self.trainer.load_checkpoint(folder)

    def weights(self, micro: Micro) -> dict[str, Tensor]:
        with _limit_by_its_flag():
            self.trainer.prepare(*self._feeds(micro))  # a state that was loaded is taken over with the first batch
        return self.trainer.state_dict(pytorch_format=True)

    def profile(self, micro: Micro) -> list[dict[str, Any]]:
        with _limit_by_its_flag():
            return self.trainer.profile(*self._feeds(micro))

    def graph(self) -> ir.Model | None:
        return self.trainer.step_model()

    def memory(self) -> dict[str, int]:
        return self.trainer.peak_memory()

    def _feeds(self, micro: Micro) -> list[Tensor]:
        tensors = [tensor.to(self._device, non_blocking=True) for tensor in micro.batch]
        return [*tensors, torch.tensor(micro.share, device=self._device)] if self._weighted else tensors


@contextmanager
def _limit_by_its_flag() -> Iterator[None]:
    """Name --gpu_memory_limit_gb where the trainer names its own option for it."""
    try:
        yield
    except OptionError as error:
        if _LIMIT not in error.problem:
            raise
        raise OptionError(
            error.problem.replace(_LIMIT, "--gpu_memory_limit_gb"),
            reason=error.reason,
            way_out="raise --gradient_accumulation_steps, so that fewer sequences go in at a time, or the limit",
        ) from None


def _trainer_options(
    options: Options, processes: Processes, device: str, scaler: amp.LossScaler | None
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "batch": {"gradient_accumulation_steps": options.gradient_accumulation_steps},
        "device": {"id": device, "mem_limit": int((options.gpu_memory_limit_gb or 0) * (1 << 30))},
        "distributed": {
            "world_rank": processes.rank,
            "world_size": processes.world_size,
            "local_rank": processes.local_rank,
            "allreduce_post_accumulation": options.allreduce_post_accumulation,
            "deepspeed_zero_optimization": {"stage": int(options.deepspeed_zero_stage)},
        },
        # Masks of dropout differ from process to process.
        "utils": {"seed": options.seed + processes.rank, "grad_norm_clip": options.max_grad_norm > 0},
        "graph_transformer": {"transformer_layer_recompute": options.checkpoint_activations},
    }
    if options.max_grad_norm > 0:
        made["utils"]["max_grad_norm"] = options.max_grad_norm
    if options.fp16 or options.bf16:
        made["mixed_precision"] = {"enabled": True, "dtype": "float16" if options.fp16 else "bfloat16"}
    if scaler is not None:
        made["mixed_precision"]["loss_scaler"] = scaler
    return made
