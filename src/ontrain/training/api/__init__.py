"""Training on a device from the files of `generate_artifacts`, with stock onnxruntime and numpy alone."""

from ontrain.training.api.checkpoint_state import CheckpointState, Parameter, Parameters, Properties
from ontrain.training.api.lr_scheduler import LinearLRScheduler
from ontrain.training.api.module import Module
from ontrain.training.api.optimizer import Optimizer

__all__ = [
    "CheckpointState",
    "LinearLRScheduler",
    "Module",
    "Optimizer",
    "Parameter",
    "Parameters",
    "Properties",
]
