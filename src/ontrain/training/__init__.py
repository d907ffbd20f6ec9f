"""The training API under onnxruntime.training's names."""

from ontrain.training import optim
from ontrain.training.options import ORTTrainerOptions
from ontrain.training.orttrainer import ORTTrainer, TrainStepInfo

__all__ = ["ORTTrainer", "ORTTrainerOptions", "TrainStepInfo", "optim"]
