"""The same updates in eager PyTorch: autograd, LAMB in fused calls, torch.autocast, DistributedDataParallel."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from harness.checkpoints import eager_state, restore_eager_state
from harness.eager import profiled
from harness.files import DataError
from torch import Tensor, nn

from ontrain.checkpoint import read_checkpoint, write_checkpoint
from ontrain.distributed import Processes
from ontrain.errors import NonFiniteLossError
from pretraining.engines import Micro, Outcome, loss_scaler, without_decay
from pretraining.flags import Options


class EagerEngine:
    """Makes the updates as a plain loop would: autograd, LAMB, torch.autocast, DistributedDataParallel."""

    def __init__(self, model: nn.Module, options: Options, processes: Processes, device: str) -> None:
        _check(options, device)
        self._model, self._processes, self._device = model.to(device), processes, device
        self._limit = options.max_grad_norm or float("inf")
        self._scaler = loss_scaler(options)
        self._half = torch.float16 if options.fp16 else torch.bfloat16 if options.bf16 else None
        if options.checkpoint_activations:
            self._model.gradient_checkpointing_enable()
        named = list(model.named_parameters())
        bare = set(without_decay([name for name, _ in named]))
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
        """Add up the gradients of some micro-batches and update the weights."""
        self._parallel.train()
        self._optimizer.zero_grad()
        scale = 1.0 if self._scaler is None else float(self._scaler.loss_scale)
        total = torch.zeros(3, device=self._device)
        for number, micro in enumerate(micros, 1):
            # Gradients of the processes are added up once, after the last.
            wait = number < len(micros) and self._processes.world_size > 1
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
        if self._processes.rank == 0:
            scaler = self._scaler.state_dict() if self._scaler is not None else None
            state = eager_state(self._model, self._optimizer, "rng")
            write_checkpoint(folder, state, {"loss_scaler": scaler, "user_dict": dict(user)})

    def load(self, folder: Path) -> dict[str, Any]:
        state, meta = read_checkpoint(folder)
        # The masks of the other processes are drawn anew.
        restore_eager_state(self._model, self._optimizer, state, folder, "" if self._processes.rank else "rng")
        if self._scaler is not None and meta.get("loss_scaler"):
            self._scaler.load_state_dict(meta["loss_scaler"])
        user: dict[str, Any] = meta.get("user_dict", {})
        return user

    def weights(self, micro: Micro) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self._model.named_parameters()}

    def profile(self, micro: Micro) -> list[dict[str, Any]]:
        state = torch.get_rng_state()
        rows = profiled(lambda: self._forward(micro)[0].backward())
        self._optimizer.zero_grad()
        torch.set_rng_state(state)
        return rows

    def graph(self) -> ir.Model | None:
        return None

    def memory(self) -> dict[str, int]:
        return {}

    def _forward(self, micro: Micro) -> tuple[Tensor, Tensor, Tensor]:
        tensors = [tensor.to(self._device, non_blocking=True) for tensor in micro.batch]
        device = torch.device(self._device).type
        with torch.autocast(device, self._half) if self._half is not None else contextlib.nullcontext():
            return self._parallel(*tensors, torch.tensor(micro.share, device=self._device))


@dataclass(frozen=True)
class _Step:
    """What a loss scaler reads of an update."""

    all_finite: bool


def _check(options: Options, device: str) -> None:
    if options.deepspeed_zero_stage:
        raise DataError("--deepspeed_zero_stage: the moments of eager PyTorch are not shared out; use --engine ontrain")
    if options.gpu_memory_limit_gb is None:
        return
    if not device.startswith("cuda"):
        raise DataError("--gpu_memory_limit_gb: PyTorch's allocator has no limit on a CPU; use --engine ontrain")
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, options.gpu_memory_limit_gb * (1 << 30) / total), device)


class Lamb(torch.optim.Optimizer):
    """u = m̂ / (√v̂ + ε) + λp, p ← p − lr · ‖p‖/‖u‖ · u, in calls that each take all tensors of a group.

    Source: You et al. 2020, "Large batch optimization for deep learning", algorithm 2, with φ(z) = z.
    """

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._update(group, params, [p.grad for p in params])

    def _update(self, group: dict[str, Any], params: list[Tensor], grads: list[Any]) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p] = {"step": torch.zeros(()), "m": torch.zeros_like(p), "v": torch.zeros_like(p)}
        states = [self.state[p] for p in params]
        for state in states:
            state["step"] += 1
        step, (alpha, beta) = int(states[0]["step"]), group["betas"]
        m, v = [state["m"] for state in states], [state["v"] for state in states]
        torch._foreach_lerp_(m, grads, 1 - alpha)
        torch._foreach_mul_(v, beta)
        torch._foreach_addcmul_(v, grads, grads, 1 - beta)
        root = torch._foreach_sqrt(v)
        torch._foreach_div_(root, (1 - beta**step) ** 0.5)
        torch._foreach_add_(root, group["eps"])
        update = torch._foreach_div(m, 1 - alpha**step)
        torch._foreach_div_(update, root)
        if group["weight_decay"]:
            torch._foreach_add_(update, params, alpha=group["weight_decay"])
        of_param, of_update = (torch.stack(torch._foreach_norm(tensors)) for tensors in (params, update))
        # A tensor of zeros, or one without a direction, moves by the learning rate alone.
        ratio = torch.where((of_param > 0) & (of_update > 0), of_param / of_update, 1.0)
        torch._foreach_mul_(update, list(ratio.unbind()))
        torch._foreach_add_(params, update, alpha=-group["lr"])
