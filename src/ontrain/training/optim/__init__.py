"""Configurations of optimizers and schedulers for ORTTrainer, and optimizers for loops around an ORTModule."""

from ontrain.training.optim import config, fused, lr_scheduler
from ontrain.training.optim.config import AdamConfig, LambConfig, SGDConfig
from ontrain.training.optim.fp16_optimizer import FP16_Optimizer
from ontrain.training.optim.fused import AdamWMode, FusedAdam, FusedLamb

__all__ = [
    "AdamConfig", "AdamWMode", "FP16_Optimizer", "FusedAdam", "FusedLamb", "LambConfig", "SGDConfig", "config", "fused",
    "lr_scheduler",
]  # fmt: skip
