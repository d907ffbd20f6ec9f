"""The same updates in eager PyTorch: autograd, LAMB in fused calls, torch.autocast, DistributedDataParallel."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from corpus.workspace import DataError
from torch import Tensor, nn

from ontrain.checkpoint import read_checkpoint, write_checkpoint
from ontrain.distributed import Processes
from ontrain.errors import CheckpointError, NonFiniteLossError
from pretraining.engine import Micro, Outcome, loss_scaler
from pretraining.lamb import Lamb
from pretraining.model import PretrainingBert, without_decay
from pretraining.options import Options

__all__ = ["EagerEngine"]

_KINDS = ("step", "m", "v")


class EagerEngine:
    """Makes the updates of `OntrainEngine` as a plain training loop would.

    Raises:
        DataError: a flag that eager PyTorch cannot honour.
    """

    def __init__(self, model: PretrainingBert, options: Options, processes: Processes, device: str) -> None:
        _check(options, device)
        self._model, self._processes, self._device = model.to(device), processes, device
        self._limit = options.max_grad_norm or float("inf")
        self._scaler = loss_scaler(options)
        self._half = torch.float16 if options.fp16 else torch.bfloat16 if options.bf16 else None
        if options.checkpoint_activations:
            self._model.gradient_checkpointing_enable()
        bare = set(without_decay([name for name, _ in model.named_parameters()]))
        named = list(model.named_parameters())
        groups = [
            {"params": [p for name, p in named if name not in bare], "weight_decay": 0.01},
            {"params": [p for name, p in named if name in bare], "weight_decay": 0.0},
        ]
        self._optimizer = Lamb(groups, lr=options.learning_rate)
        self._parallel: nn.Module = self._model
        if processes.world_size > 1:
            ids = [torch.device(device).index] if device.startswith("cuda") else None
            self._parallel = nn.parallel.DistributedDataParallel(self._model, device_ids=ids)
        torch.manual_seed(options.seed + processes.rank)  # dropout's: other masks in each process

    def update(self, micros: Sequence[Micro], rate: float) -> Outcome:
        self._parallel.train()
        self._optimizer.zero_grad()
        scale = 1.0 if self._scaler is None else float(self._scaler.loss_scale)
        total = torch.zeros(3, device=self._device)
        for number, micro in enumerate(micros):
            # Gradients of the processes are added up once, after the last.
            wait = number + 1 < len(micros) and self._processes.world_size > 1
            with self._parallel.no_sync() if wait else contextlib.nullcontext():  # type: ignore[operator]
                losses = self._forward(micro)
                (losses[0] * (scale / len(micros))).backward()
            total += torch.stack([loss.detach().float() for loss in losses])
        grads = [p.grad for p in self._model.parameters() if p.grad is not None]
        if scale != 1.0:
            torch._foreach_mul_(grads, 1 / scale)
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), self._limit)
        finite = bool(norm.isfinite())
        if finite:
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
        elif scale <= 1.0:
            raise NonFiniteLossError(f"loss {total[0] / len(micros):g}, norm of the gradient {norm:g}")
        if self._scaler is not None:
            self._scaler.update(_Step(finite))
        return Outcome(total / len(micros), norm, finite, scale)

    def save(self, folder: Path, user: Mapping[str, Any]) -> None:
        if self._processes.rank:
            return
        optimizer = {
            f"{name}.{kind}": self._optimizer.state[p][kind]
            for name, p in self._model.named_parameters()
            for kind in _KINDS
            if p in self._optimizer.state
        }
        rng = {"cpu": torch.get_rng_state()}
        if self._device.startswith("cuda"):
            rng["cuda"] = torch.cuda.get_rng_state(self._device)
        tensors = {"model": dict(self._model.named_parameters()), "optimizer": optimizer, "rng": rng}
        scaler = self._scaler.state_dict() if self._scaler is not None else None
        write_checkpoint(folder, tensors, {"loss_scaler": scaler, "user_dict": dict(user)})

    def load(self, folder: Path) -> dict[str, Any]:
        tensors, meta = read_checkpoint(folder)
        user: dict[str, Any] = meta.get("user_dict", {})
        named = dict(self._model.named_parameters())
        try:
            with torch.no_grad():
                for name, p in named.items():
                    p.copy_(tensors["model"][name])
                    self._optimizer.state[p] = {
                        kind: tensors["optimizer"][f"{name}.{kind}"].to(p.device if kind != "step" else "cpu")
                        for kind in _KINDS
                    }
            if self._processes.rank == 0:  # the others' masks are drawn anew
                torch.set_rng_state(tensors["rng"]["cpu"])
                if "cuda" in tensors["rng"] and self._device.startswith("cuda"):
                    torch.cuda.set_rng_state(tensors["rng"]["cuda"], self._device)
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(f"{folder} holds no state of this model and engine", reason=str(error)) from error
        if self._scaler is not None and meta.get("loss_scaler"):
            self._scaler.load_state_dict(meta["loss_scaler"])
        return user

    def weights(self, micro: Micro) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self._model.named_parameters()}

    def profile(self, micro: Micro) -> list[dict[str, Any]]:
        state = torch.get_rng_state()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
            self._forward(micro)[0].backward()
        self._optimizer.zero_grad()
        torch.set_rng_state(state)
        return [
            {"operator": event.key, "calls": event.count, "milliseconds": event.self_cpu_time_total / 1000}
            for event in trace.key_averages()
        ]

    def graph(self) -> ir.Model | None:
        return None

    def memory(self) -> dict[str, int]:
        return {}

    def _forward(self, micro: Micro) -> tuple[Tensor, Tensor, Tensor]:
        tensors = [tensor.to(self._device, non_blocking=True) for tensor in micro.batch]
        half = self._half
        device = torch.device(self._device).type
        with torch.autocast(device, half) if half is not None else contextlib.nullcontext():
            found: tuple[Tensor, Tensor, Tensor] = self._parallel(
                *tensors, torch.tensor(micro.share, device=self._device)
            )
        return found


class _Step:
    """What a loss scaler reads of an update."""

    def __init__(self, all_finite: bool) -> None:
        self.all_finite = all_finite


def _check(options: Options, device: str) -> None:
    if options.deepspeed_zero_stage:
        raise DataError("--deepspeed_zero_stage: the moments of eager PyTorch are not shared out; use --engine ontrain")
    if options.gpu_memory_limit_gb is None:
        return
    if not device.startswith("cuda"):
        raise DataError("--gpu_memory_limit_gb: PyTorch's allocator has no limit on a CPU; use --engine ontrain")
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, options.gpu_memory_limit_gb * (1 << 30) / total), device)
