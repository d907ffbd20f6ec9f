"""The same updates in eager PyTorch: autograd, LAMB in fused calls, torch.autocast, DistributedDataParallel."""

from __future__ import annotations

import torch
from harness.eager import EagerTrainer, decay_groups
from harness.files import DataError
from harness.lamb import Lamb
from harness.processes import Team
from torch import nn

from ontrain.training import amp
from pretraining.flags import Options


def eager_twin(
    options: Options, model: nn.Module, team: Team, scaler: amp.LossScaler | None, spared: list[str]
) -> EagerTrainer:
    """Return what makes the updates as a plain loop would; the parameters in `spared` get no weight decay."""
    _check(options, team.device)
    model.to(team.device)
    if options.checkpoint_activations:
        model.gradient_checkpointing_enable()  # type: ignore[operator]
    groups = decay_groups(model, lambda name: name in spared, 0.01)
    compute = team.parallel(model)
    torch.manual_seed(options.seed + team.rank)  # dropout's: other masks in each process
    return EagerTrainer(
        model, compute, Lamb(groups, lr=options.learning_rate), accumulation=options.gradient_accumulation_steps,
        max_norm=options.max_grad_norm, team=team, scaler=scaler,
        half=torch.float16 if options.fp16 else torch.bfloat16 if options.bf16 else None,
    )  # fmt: skip


def _check(options: Options, device: torch.device) -> None:
    if options.deepspeed_zero_stage:
        raise DataError("--deepspeed_zero_stage: the moments of eager PyTorch are not shared out; use --engine ontrain")
    if options.gpu_memory_limit_gb is None:
        return
    if device.type != "cuda":
        raise DataError("--gpu_memory_limit_gb: PyTorch's allocator has no limit on a CPU; use --engine ontrain")
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, options.gpu_memory_limit_gb * (1 << 30) / total), device)
