"""Configurations of optimizers and learning-rate schedulers, under onnxruntime.training.optim's names."""

from ontrain.training.optim import config, lr_scheduler
from ontrain.training.optim.config import AdamConfig, LambConfig, SGDConfig

__all__ = ["AdamConfig", "LambConfig", "SGDConfig", "config", "lr_scheduler"]
